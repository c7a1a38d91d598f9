"""`./dev test` in three groups. Each test is in the first one, unless it is marked `forms` or `long`: by a label of
CTest's, by a mark of pytest's. No test is chosen by chance or by what has changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from development import build, environment, junit, lint, packages
from development.steps import ALONE, LOGS, ROOT, SETTINGS, Command, Stop, Tally, git, leave_out, listed

WANTING = re.compile(r"not installed|Debian's package|apt-get install")  # a test was skipped for want of a package
TIMES = ("<!-- times -->\n", "<!-- /times -->")  # in CONTRIBUTING.md, around the table
MOST_GROUPS = 8  # of a run, those that take longest
PYTHON = environment.VENV / "bin" / "python"


def _title(what: str, group: str) -> str:
    """Each has a log of its own."""
    return f"test {what}" + ("" if group == "quick" else f", {group}")


def _ctest(tally: Tally, preset: str, group: str, choice: Sequence[str]) -> None:
    results = LOGS / f"{group}-{preset}.xml"
    parallel = ["--parallel", str(2 * build.JOBS)]  # many wait for something
    told = ["--output-on-failure", "--test-output-size-passed", "100000"]  # which cases were left out is told there
    command: Command = [build.tool("ctest"), "--test-dir", f"build/{preset}", *parallel, *told]
    tally.tests(_title(preset, group), [*command, "--no-tests=error", "--output-junit", results, *choice], results)


def _pytest(tally: Tally, group: str, marks: str) -> None:
    results = LOGS / f"{group}-laboratory.xml"
    spread = ["-n", str(build.JOBS), "--dist", "worksteal"]
    command: Command = [PYTHON, "-m", "pytest", *spread, "-m", marks, f"--junitxml={results}"]
    tally.tests(_title("laboratory", group), command, results)


def _build(tally: Tally, preset: str, *targets: str) -> bool:
    good = build.whole(preset, *targets)
    tally.failed += not good
    return good


def _quick(tally: Tally) -> None:
    """What a change can break."""
    rest = ["-LE", "^(forms|long)$"]
    lint.quick(tally)
    environment.install_laboratory(environment.ALL)
    if not _build(tally, "release"):
        return
    _ctest(tally, "release", "quick", rest)
    tally.check("mypy", [environment.VENV / "bin" / "mypy"])
    tally.check("ruff", [environment.VENV / "bin" / "ruff", "check", "--quiet"])
    _pytest(tally, "quick", "not forms and not long")
    if _build(tally, "sanitize"):
        _ctest(tally, "sanitize", "quick", rest)


def _forms(tally: Tally) -> None:
    """The same library in other forms, and beside more of the world."""
    environment.install_laboratory(environment.ALL)
    if not _build(tally, "release", "all", "forms"):
        return
    _ctest(tally, "release", "forms", ["-L", "^forms$"])
    _pytest(tally, "forms", "forms and not long")
    _build(tally, "lto", "hakmem")
    if _build(tally, "sanitize", "all", "forms"):
        _ctest(tally, "sanitize", "forms", ["-L", "^forms$"])
    if _build(tally, "tsan", "all", "forms"):
        _ctest(tally, "tsan", "forms", ["-LE", "^long$"])
    lint.clang_tidy(tally)


def _long(tally: Tally) -> None:
    """What takes hours."""
    environment.install_laboratory(environment.ALL)
    for preset in ("release", "sanitize", "tsan"):
        if _build(tally, preset, "all", "forms"):
            _ctest(tally, preset, "long", ["-L", "^long$"])
    if _build(tally, "lto"):
        _ctest(tally, "lto", "long", ["-L", "^(api|unit)$", "-LE", "^(forms|long)$"])
    _pytest(tally, "long", "long")
    for kind in packages.KINDS:
        tally.check(f"package {kind}", ["env", f"{ALONE}=1", "./dev", "package", kind])


QUICK = "quick"

FORMS_WANT = ["browser", "perf", "cpython", "services", "linkers"]

# By the option that asks for it: what it runs, the packages that it needs, and those without which it skips tests.
GROUPS: dict[str, tuple[Callable[[Tally], None], Sequence[str], Sequence[str]]] = {
    QUICK: (_quick, ["test"], []),
    "--forms": (_forms, ["test", "programs", "fleet", "lint", "emulated"], FORMS_WANT),
    "--long": (_long, ["test", "long", "emulated"], ["programs", "cpython"]),
}


def run(option: str) -> int:
    """Exit status 0 when nothing has failed. With CI=true a test that was skipped for want of a package has failed."""
    begin = time.monotonic()
    work, needed, wanted = GROUPS[option]
    if found := re.search(r"[^\w./@%+~=-]", str(ROOT)):
        raise Stop(
            f"LD_PRELOAD, CMake and scripts of tests take no path with {found[0]!r} in it: {ROOT}; clone to another"
            " folder"
        )
    if names := leave_out(os.environ, SETTINGS):
        print(f"Tests choose their own settings: {' '.join(names)} left out")
    build.prepare(*needed)
    packages.try_to_install(wanted)
    commit, before, tally = git("rev-parse", "HEAD").strip(), _tree(), Tally()
    if not before:
        print("git tells nothing of this tree: whether the tests change it is not looked at")
    work(tally)
    if changed := _changed(commit, before):
        tally.failed += 1
        print("\n    ".join(["The tests have changed the tree:", *changed]))
    if not tally.executed:
        tally.failed += 1
        print("No test ran.")
    wanting = [line for line in tally.skipped if WANTING.search(line)]
    if tally.skipped:
        print(f"Skipped, {len(wanting)} of them for want of a package:")
        print("\n".join(f"    {line}" for line in tally.skipped))
    tally.failed += bool(wanting) and os.environ.get("CI") == "true"
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    print(f"Took {minutes} min {seconds:02} s.")
    skipped = f", {len(tally.skipped)} skipped" if tally.skipped else ""
    print(f"{tally.passed} passed, {tally.failed} failed{skipped}")
    return 1 if tally.failed else 0


def _tree() -> dict[str, str]:
    """Files that git has or would take, each with its mode and a hash of what it holds."""
    tree = {}
    for name in listed():
        with contextlib.suppress(FileNotFoundError):  # an editor's, which is gone again
            if (ROOT / name).is_file():
                tree[name] = f"{(ROOT / name).stat().st_mode:o} {_hash(ROOT / name)}"
    return tree


def _hash(path: Path) -> str:
    """By parts: somebody's core dump may lie there."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def _changed(commit: str, before: Mapping[str, str]) -> list[str]:
    """Files that differ from before, but for those that somebody has committed meanwhile."""
    after = _tree()
    committed = re.findall("[^\0]+", git("diff", "--no-renames", "--name-only", "-z", commit, "HEAD"))
    return sorted(name for name in {*before, *after}.difference(committed) if before.get(name) != after.get(name))


def write_times() -> None:
    """The table of times in CONTRIBUTING.md. Rows of runs that have left no results in build/logs stay as they are."""
    groups = ("quick", "forms", "long")
    paths = [path for group in groups for path in LOGS.glob(f"{group}-*.xml")]
    found = {path.stem: cases for path in paths if (cases := junit.read(path))}
    if not found:
        raise Stop("build/logs has no results of tests: ./dev test leaves them there")
    page = ROOT / "CONTRIBUTING.md"
    head, begin, rest = page.read_text(encoding="utf-8").partition(TIMES[0])
    table, end, tail = rest.partition(TIMES[1])
    if not end:
        raise Stop(f"CONTRIBUTING.md has no lines {TIMES[0].strip()} and {TIMES[1].strip()}: nothing was written")
    rows: dict[str, list[str]] = {}
    for row in re.finditer(rf"^\| ((?:{'|'.join(groups)})-\S+) .*$", table, re.MULTILINE):
        rows.setdefault(row[1], []).append(row[0])
    for run, cases in found.items():
        longest = sorted(junit.by_group(cases).items(), key=lambda item: -item[1][1])[:MOST_GROUPS]
        rows[run] = [f"| {run} | {name} | {count} | {seconds:.0f} |" for name, (count, seconds) in longest]
    order = sorted(rows, key=lambda run: (groups.index(run.partition("-")[0]), run))
    lines = ["| run | group | tests | seconds |", "|---|---|--:|--:|", *(row for run in order for row in rows[run])]
    page = page.resolve()
    with tempfile.TemporaryDirectory(prefix=".times-", dir=page.parent) as folder:  # the disk may be full
        whole = Path(folder, page.name)
        whole.write_text(f"{head}{begin}" + "".join(f"{line}\n" for line in lines) + f"{end}{tail}", encoding="utf-8")
        shutil.copymode(page, whole)
        whole.replace(page)
