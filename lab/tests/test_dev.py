"""`./dev`: what it says where something is missing, how it counts tests, and which group runs which."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import dev
import pytest
from development import build, environment, junit, lint, packages, steps, testing
from development.steps import Stop, Tally
from hakmem import native
from hakmem.dossier import cases

ROOT = native.checkout() or Path()
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Steps run in a folder of the test's, and leave their logs there."""
    for module in (dev, steps, packages, environment, build, testing):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for module in (steps, testing):
        monkeypatch.setattr(module, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


# ---- Where it can't begin --------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes another user's folder")
def test_somebody_elses_clone_is_refused_in_a_line(tmp_path: Path) -> None:
    shutil.copy(ROOT / "dev", tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o755)
    for command in ("demo", "test", "build", "lab"):
        done = subprocess.run([*POWERLESS, tmp_path / "dev", command], capture_output=True, text=True, timeout=600)
        expected = f"dev: you can't write in {tmp_path}: work in a clone of your own\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)
    done = subprocess.run([*POWERLESS, tmp_path / "dev", "help"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "./dev demo" in done.stdout


def test_help_fits_on_a_screen_and_names_every_command() -> None:
    lines = dev.HELP.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 120
    assert set(re.findall(r"^  \./dev (\w+)", dev.HELP, re.MULTILINE)) == set(dev.COMMANDS)


def test_what_it_does_not_know_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["nosuch"]) == 2 and capsys.readouterr().err == "dev: there is no nosuch; try ./dev help\n"
    for word in ("--short", "", testing.QUICK):
        assert dev.main(["test", word]) == 2
        assert capsys.readouterr().err == f"dev: test takes --forms or --long, or nothing; not {word}\n"
    for words in (["lint", "--foo"], ["help", "x"], ["clean", "build"], ["test", "--forms", "--long"]):
        assert dev.main(words) == 2
        assert re.fullmatch(r"dev: \w+ takes (nothing more|one word); not .+\n", capsys.readouterr().err)


def test_a_preset_is_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A build of another folder is removed: that of a clone that was moved, and no other one."""
    foreign = tmp_path / "build"
    foreign.mkdir()
    (foreign / "CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
    for preset in (str(foreign), os.path.relpath(foreign, ROOT / "build"), "..", "base", ""):
        assert dev.main(["build", preset]) == 2
        assert f"dev: there is no preset {preset}; there are release " in capsys.readouterr().err
        with pytest.raises(Stop):
            build.whole(preset)
    assert (foreign / "CMakeCache.txt").exists() and (ROOT / "README.md").exists()


def test_nothing_of_the_caller_s_leads_elsewhere_or_leaves_out_tests() -> None:
    """git sets some of these for its hooks: a test that makes a repository would write into the developer's."""
    mine = {"PATH": "/bin", "GIT_AUTHOR_NAME": "me", "PIP_INDEX_URL": "x", "GIT_CONFIG_GLOBAL": "/dev/null"}
    local = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    others = [*local.stdout.split(), "GIT_NAMESPACE", "PIP_USER", "PIP_TARGET", "PIP_DRY_RUN", "PYTEST_ADDOPTS"]
    others.append("PYTHONOPTIMIZE")  # a test that asserts would not
    environment = mine | dict.fromkeys(others, "1")
    assert steps.leave_out(environment) == sorted(others)
    assert environment == mine | {"PYTHONUTF8": "1"}
    assert not any(steps.OTHERS.fullmatch(name) for name in os.environ)  # by conftest.py


def test_tests_choose_their_own_settings(
    ready: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who uses hakmem may have some exported."""
    for name in ("HAKMEM_PROFILE", "LD_PRELOAD", "HAK_TEST_FORM", "MALLOC_ARENA_MAX"):
        monkeypatch.setenv(name, "")
    assert run(monkeypatch, Tally(passed=1, executed=1)) == 0
    assert not any(steps.SETTINGS.fullmatch(name) for name in os.environ)
    said = "Tests choose their own settings: HAKMEM_PROFILE HAK_TEST_FORM LD_PRELOAD MALLOC_ARENA_MAX left out"
    assert said in capsys.readouterr().out


def test_the_lock_may_be_another_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.delenv(steps.ALONE, raising=False)
    before = os.umask(0o077)
    try:
        with dev._alone("build"):
            assert (tmp_path / ".dev.lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
    opened, modes = open, []

    def may_only_read(path: Path, mode: str) -> object:
        modes.append(mode)
        if mode == "ab":
            raise PermissionError
        return opened(path, mode)

    monkeypatch.setattr(dev, "open", may_only_read, raising=False)
    with dev._alone("build"):
        assert modes == ["ab", "rb"]


def test_what_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup has it. Else a terminal that closes ends the steps, too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        assert dev.main(["help"]) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGQUIT) == signal.getsignal(signal.SIGTERM) == dev._interrupt
        assert signal.SIGQUIT in steps.ENDS
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_path_that_no_preload_can_name_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "prepare", lambda *groups: pytest.fail("it began"))
    for name in ("a b", "a;b", "a:b", "a$b", "a#b", "a'b", "a(b)", "a,b"):
        monkeypatch.setattr(testing, "ROOT", tmp_path / name)
        with pytest.raises(Stop, match=f"{re.escape(name)}; clone to another folder"):
            testing.run(testing.QUICK)


def test_clean_keeps_what_others_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And follows no link."""
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.delenv(steps.ALONE, raising=False)
    (tmp_path / "build" / "some").mkdir(parents=True)
    assert dev.main(["clean"]) == 0 and not (tmp_path / "build").exists()
    assert (tmp_path / ".dev.lock").exists()
    (tmp_path / "else").mkdir()
    (tmp_path / "build").symlink_to("else")
    assert dev.main(["clean"]) == 2 and (tmp_path / "else").exists()


def test_an_environment_whose_python_was_replaced_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / "venv")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    assert environment._is_here()
    (library,) = (tmp_path / "venv" / "lib").glob("python3.*")
    library.rename(library.with_name("python3.1"))  # as if the links led to another version now
    assert not environment._is_here()
    (tmp_path / "venv" / "bin" / "python").unlink()
    assert not environment._is_here()


def test_why_pip_failed_is_told_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    log = tmp_path / "pip.log"
    log.write_text("Collecting x\nERROR: Can not perform a '--user' install.\nhint\n")
    assert environment._why(log) == ": ERROR: Can not perform a '--user' install. (pip.log tells more)"
    retry = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/click/\n"
    log.write_text(retry + "ERROR: No matching distribution found for click==8\n")
    assert environment._why(log) == ": is there a network? pip.log tells more"
    log.write_text(retry + "ERROR: Could not install packages due to an OSError: No space left on device\n")
    assert environment._why(log).startswith(": ERROR: Could not install packages due to an OSError: No space left")
    log.write_text("")
    assert environment._why(log) == "; pip.log is empty: is the disk full?"


def test_help_is_shown_after_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["clean", "--help"], ["test", "-h"], ["fuzz", "--help"], ["package", "-h"], ["-h"], []):
        assert dev.main(words) == 0 and capsys.readouterr().out == f"{dev.HELP}\n"


@pytest.mark.parametrize(("name", "value"), [("PYTHONSAFEPATH", "1"), ("PYTHONHOME", "/nosuch")])
def test_settings_of_python_s_do_not_keep_it_from_starting(name: str, value: str) -> None:
    done = subprocess.run([ROOT / "dev", "help"], env={**os.environ, name: value}, capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")


def copied(tmp_path: Path, *tools: str) -> list[Path]:
    """The command ./dev for a system that has these tools only: /usr/bin is empty there."""
    (tmp_path / "tools").mkdir()
    for tool in ("dirname", "readlink", "sh", *tools):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool) or "/bin/true")
    (tmp_path / "system").mkdir()
    script = tmp_path / "clone" / "dev"
    (script.parent / "scripts" / "development").mkdir(parents=True)
    shutil.copy(packages.TABLE, script.parent / "scripts" / "development")
    (script.parent / "scripts" / "dev.py").write_text("import sys\nprint(sys.argv[1:])\n")
    script.write_text((ROOT / "dev").read_text().replace("/usr/bin", str(tmp_path / "system")))
    return [tmp_path / "tools" / "sh", script]


def begun(command: Sequence[str | Path], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": str(tmp_path / "tools"), "CDPATH": str(tmp_path / "clone")}
    return subprocess.run(command, env=paths, cwd=tmp_path, capture_output=True, text=True, timeout=600)


def test_without_python_the_line_to_type_has_all_packages(tmp_path: Path) -> None:
    command = copied(tmp_path, "apt-get", "sed", "tr")
    (tmp_path / "tools" / "id").write_text("#!/bin/sh\necho 65534\n")
    (tmp_path / "tools" / "id").chmod(0o755)
    done = begun([*command, "test"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    typed, _, names = line.partition(" --no-install-recommends ")
    assert typed == "dev: packages are missing; type: sudo apt-get update && sudo apt-get install -y"
    assert {"python3", "gcc", "ninja-build", "libcmocka-dev", "valgrind"} <= set(names.split())


def test_the_system_s_python_stands_in_for_one_that_is_too_old(tmp_path: Path) -> None:
    command = copied(tmp_path)
    (tmp_path / "tools" / "python3").symlink_to("/bin/false")
    assert begun([*command, "build"], tmp_path).stderr.startswith("dev: python3 is older than 3.10")
    (tmp_path / "system" / "python3").symlink_to(sys.executable)
    assert begun([*command, "build"], tmp_path).stdout == "['build']\n"


def test_half_a_python_will_not_do(tmp_path: Path) -> None:
    """As Debian's python3-minimal, which lacks modules."""
    command = copied(tmp_path, "apt-get", "sed", "tr")
    (tmp_path / "tools" / "python3").write_text("#!/bin/sh\ncase $2 in *ctypes*) exit 1 ;; esac\n")
    (tmp_path / "tools" / "id").write_text("#!/bin/sh\necho 65534\n")
    for tool in ("python3", "id"):
        (tmp_path / "tools" / tool).chmod(0o755)
    assert "packages are missing; type: sudo apt-get" in begun([*command, "build"], tmp_path).stderr


def test_a_link_to_it_will_do(tmp_path: Path) -> None:
    """Wherever one is, and whatever CDPATH says."""
    shell, script = copied(tmp_path)
    (tmp_path / "tools" / "python3").symlink_to(sys.executable)
    (tmp_path / "link").symlink_to(script)
    for name in ("link", "clone/dev", script):
        done = begun([shell, name, "help"], tmp_path)
        assert (done.stdout, done.stderr) == ("['help']\n", "")


# ---- One beside another ----------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """One in which `build` ends when the file `end` is there."""
    shutil.copy(ROOT / "dev", tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "scripts" / "dev.py"
    waits = ["sh", "-c", "until [ -e end ]; do sleep 0.01; done"]
    parts = (
        "build.prepare = build.expect_preset = lambda *groups: None",
        f"build.whole = lambda preset: steps.step(preset, {waits})",
    )
    script.write_text(script.read_text().replace("\nHELP =", "\n".join(["", *parts, "", "HELP ="]), 1))
    return tmp_path


def start(clone: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [clone / "dev", *words], stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}
    )


def at_work_in(folder: Path) -> list[str]:
    """Processes."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found += [link.parent.name] if link.readlink() == folder else []
    return found


def test_one_waits_for_another(clone: Path) -> None:
    """But one that another has started does not."""
    with start(clone, "build", "first") as first:
        assert first.stdout and first.stdout.read(5) == "first"
        with start(clone, "build", "second") as second:
            assert second.stderr
            assert second.stderr.readline() == "dev: another ./dev is at work in this clone: waiting for its end\n"
            with start(clone, "build", "inner", **{steps.ALONE: "1"}) as inner:
                assert inner.stdout and inner.stdout.read(5) == "inner" and second.poll() is None
                (clone / "end").touch()
                assert second.stdout and "ok" in second.stdout.read()
    assert (first.returncode, second.returncode, inner.returncode) == (0, 0, 0)


def test_ctrl_c_is_told_by_the_status_whoever_reads(clone: Path) -> None:
    with start(clone, "build", "first") as child:
        assert child.stdout and child.stdout.read(5) == "first"
        child.stdout.close()
        child.send_signal(signal.SIGINT)
        assert child.stderr and child.stderr.read() == ""
    assert child.returncode == 130 and not at_work_in(clone)


@pytest.mark.parametrize(("closed", "status"), [("1", 2), ("2", 0)])
def test_what_is_closed_is_no_error_of_its_own(closed: str, status: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {ROOT}/dev help {closed}>&-"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == status
    assert done.stderr == ("dev: standard output is closed\n" if status else "")


# ---- Clones that move ------------------------------------------------------------------------------------------------


def test_a_build_of_another_folder_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And leaves what else lies in that folder, as what fuzzing has found."""
    begun: list[Sequence[str | Path]] = []
    monkeypatch.setattr(build, "step", lambda title, configure, make: begun.append(configure) or True)
    monkeypatch.setattr(build, "tool", lambda name: name)
    folder = tmp_path / "build" / "fuzz"
    folder.mkdir(parents=True)
    (folder / "crash-1").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for home, is_fresh in ((tmp_path, False), (f"{tmp_path}/link", False), (f"{tmp_path}/old", True)):
        (folder / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
        assert build.whole("fuzz") and ("--fresh" in begun[-1]) is is_fresh
    assert build.whole("release") and "--fresh" not in begun[-1]
    assert (folder / "crash-1").exists()
    cache = tmp_path / "build" / "release" / "CMakeCache.txt"
    for home, without in ((tmp_path, False), (f"{tmp_path}/old", True)):  # it needs the tests' packages no more
        cache.write_text(f"HAK_TESTS:BOOL=ON\nCMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
        assert build.programs("hakmem_shared") and ("-DHAK_TESTS=OFF" in begun[-1]) is without


def test_a_build_with_other_compilers_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CMake takes those of its first run only, and flags, too."""
    begun: list[Sequence[str | Path]] = []
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "step", lambda title, configure, make: begun.append(configure) or True)
    monkeypatch.setattr(build, "tool", lambda name: name)
    for name in build.COMPILERS:
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path / "build" / "fuzz" / "CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    for flags, is_fresh in (("", False), ("-O0", True), ("-O0", False), ("-O1", True), ("", True), ("", False)):
        monkeypatch.setenv("CFLAGS", flags)
        assert build.whole("fuzz") and ("--fresh" in begun[-1]) is is_fresh, flags


def test_linkers_take_no_comma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path / "a,b")
    with pytest.raises(Stop, match="a,b; clone to another folder"):
        build.programs("hakmem_shared")


def test_an_environment_of_another_folder_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    pip = tmp_path / ".venv" / "bin" / "pip"
    environment.make()
    assert pip.exists()
    before = pip.stat().st_mtime_ns
    environment.make()
    assert pip.stat().st_mtime_ns == before
    for old in ("/old", f"/old{tmp_path}"):  # the new path may be the end of the old one
        pip.write_text(pip.read_text().replace(str(tmp_path), old))
        environment.make()
        assert str(tmp_path) in pip.read_text() and "/old" not in pip.read_text()
    shutil.rmtree(tmp_path / ".venv" / "bin")  # as if it was interrupted
    environment.make()
    assert pip.exists() and (tmp_path / ".venv" / environment.MARK).exists()
    shutil.rmtree(tmp_path / ".venv")
    (tmp_path / ".venv").mkdir()  # the same, at its beginning
    environment.make()
    assert pip.exists()


def test_an_environment_of_somebody_s_own_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without pip, as some tools make it, or behind a link; and where the laboratory was installed, when it worked."""
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "made-by-dev").touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "own").touch()
    (tmp_path / ".venv" / "made-of-requirements.txt").touch()
    with pytest.raises(Stop, match=r"^\.venv doesn't work, and isn't known to be of \./dev's making"):
        environment.make()
    assert (tmp_path / ".venv" / "own").exists()
    (tmp_path / ".venv").rename(tmp_path / "away")
    (tmp_path / ".venv").symlink_to("shared")
    with pytest.raises(Stop, match=r"^\.venv doesn't work, and isn't known to be of \./dev's making"):
        environment.make()
    assert (tmp_path / "shared" / "made-by-dev").exists()


def test_format_follows_no_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does it take what a developer has put elsewhere."""
    for folder in ("src", "else", "scratch"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.c").touch()
    (tmp_path / "src" / "link.c").symlink_to("own.c")
    (tmp_path / "tests").symlink_to("else")
    names = ["src/own.c", "src/link.c", "src/gone.c", "src/page.md", "tests/own.c", "scratch/own.c"]
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint, "listed", lambda: names)
    assert lint._sources() == ["src/own.c"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed (Debian's package git)")
def test_a_tree_in_another_repository_is_not_that_one_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").touch()
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    assert steps.listed() == ["sub/file"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.c")).touch()  # a name that is no text
    assert sorted(map(os.fsencode, steps.listed())) == [b"caf\xe9.c", b"sub/file"]
    monkeypatch.setattr(steps, "ROOT", tmp_path / "sub")
    assert steps.listed() == []


# ---- Packages --------------------------------------------------------------------------------------------------------

TABLE = """# GROUP PACKAGE PROBE
build    there        true
build    gone         false
build    gone         false
test     also-{python}  [ -e nosuch ]
test@nosuch  other     false
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "packages.txt").write_text(TABLE)
    monkeypatch.setattr(packages, "TABLE", tmp_path / "packages.txt")
    monkeypatch.setattr(packages, "_versions", lambda: {"python": "3.11"})
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")


def test_the_table_is_read(table: None) -> None:
    assert packages.missing(["build"]) == ["gone"]
    assert packages.missing(["test", "build"]) == ["gone", "also-3.11"]


def test_each_row_of_the_table_can_be_asked() -> None:
    """A probe that the shell doesn't understand would have its package installed again and again."""
    groups = {line.split()[0].partition("@")[0] for line in packages.TABLE.read_text().splitlines() if line[0] != "#"}
    for package, probe in packages.needs(sorted(groups)):
        assert re.fullmatch(r"[a-z0-9.+-]+", package), package
        assert subprocess.run(["sh", "-n", "-c", probe]).returncode == 0, probe


def test_who_cannot_install_is_told_once_what_to_type(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "as_root", lambda: None)
    with pytest.raises(Stop) as stop:
        packages.install(["build"], later=["test"])
    install = "sudo apt-get install -y --no-install-recommends gone also-3.11"
    assert str(stop.value) == f"packages are missing; type: sudo apt-get update && {install}"


def test_without_a_network_it_says_what_is_missing(
    table: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho Could not resolve; exit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "as_root", list)
    with pytest.raises(Stop, match=r"^apt-get could not install gone: is there a network\? logs/apt-get-install.log"):
        packages.install(["build"])
    assert "Could not resolve" not in capsys.readouterr().out
    monkeypatch.setattr(environment, "make", lambda: None)
    monkeypatch.setattr(environment, "PIP", ["false"])
    with pytest.raises(Stop, match=r"^pip could not install it; logs/pip-install-x.log is empty"):
        environment.tool("x==1")


def test_packages_that_the_system_does_not_have_are_left_out(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(packages, "as_root", list)
    monkeypatch.setattr(packages, "_update", lambda root: None)
    monkeypatch.setattr(packages, "_install", lambda root, names: bool(asked.append(names)))
    monkeypatch.setattr(packages, "_said", lambda *words: "  Candidate: (none)\n" if words[-1] == "gone" else "")
    packages.try_to_install(["build"])
    monkeypatch.setattr(packages, "_said", lambda *words: "  Candidate: 1.0\n")
    packages.try_to_install(["build"])
    assert asked == [["gone"]]


def test_debian_packages_are_not_begun_on_a_system_that_is_too_old_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else that they need is asked for then; other packages are made."""
    monkeypatch.setattr(build, "prepare", lambda *groups, later=(): None)
    monkeypatch.setattr(packages, "install", lambda groups: asked.extend(groups))
    monkeypatch.setattr(environment, "version_of", lambda program: (3, 22, 1))
    monkeypatch.setattr(environment, "install_laboratory", lambda requirements: None)
    monkeypatch.setattr(environment, "pip", lambda *words: None)
    monkeypatch.setattr(Tally, "check", lambda tally, title, command: bool(ran.append(title)) or True)
    asked: list[str] = []
    ran: list[str] = []
    assert dev.package(["debian", "wheel"]) == 1
    said = "dev: Debian packages are made on Debian 12, Ubuntu 24.04 or later; here take ./dev package wheel\n"
    assert capsys.readouterr().err == said
    assert asked == ["cmake", "wheel"] and ran == ["package wheel", "test package wheel"]


def test_pages_say_where_debian_packages_are_made() -> None:
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    told = [page for page in pages if "    ./dev package debian\n" in page]
    assert told and all("Debian 12, Ubuntu 24.04 or later" in page for page in told)


def test_each_kind_of_package_has_its_recipe_and_its_test() -> None:
    recipes = {path.stem.removeprefix("test_") for path in (ROOT / "packaging").glob("test_*.sh")}
    assert set(packages.KINDS) == {name for name in recipes if (ROOT / f"packaging/{name}.sh").is_file()}


def test_ci_keeps_all_packages() -> None:
    (kept,) = re.findall(
        r"name: packages, path: build/packages/(\S+)}", (ROOT / ".github/workflows/test.yml").read_text()
    )
    debian = re.findall(r"^Package: (\S+)$", (ROOT / "packaging/debian/control").read_text(), re.MULTILINE)
    assert len(debian) == 3 and all(fnmatch.fnmatch(f"{name}_1.deb", kept) for name in debian)


# ---- Steps and results -----------------------------------------------------------------------------------------------


def test_a_step_that_fails_shows_the_end_of_its_output(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands after it aren't begun."""
    assert steps.step("it works", ["true"], ["true"])
    assert re.fullmatch(r"it works {20,} 0 s  ok\n", capsys.readouterr().out)
    noise = "echo ' 1/2 Test #1: a ... Passed 1 sec'; echo wrong; exit 3"
    assert not steps.step("it fails", ["sh", "-c", noise], ["touch", "second"])
    assert re.search(r"FAILED \(logs/it-fails.log\)\nwrong\n$", capsys.readouterr().out)
    assert not (logs.parent / "second").exists()
    assert not steps.step("no such", ["./nosuch"]) and "./nosuch: No such file" in capsys.readouterr().out


def has_ended(pid: str) -> bool:
    """Within a minute."""
    status = Path(f"/proc/{pid.strip()}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and " Z " not in status.read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, dev._interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


def test_who_ends_a_step_ends_all_that_it_has_started(logs: Path, interrupts: None) -> None:
    started = logs.parent / "started"
    words = ["sh", "-c", f"sleep 100 & echo $! >{started}; sleep 1; kill -TERM {os.getpid()}; wait"]
    with pytest.raises(KeyboardInterrupt):
        steps.step("it is ended", words)
    assert has_ended(started.read_text())


def test_sessions_of_their_own_end_with_it(logs: Path, interrupts: None) -> None:
    """Also what doesn't listen, and what is started by it: tests start such to send them a Ctrl-C."""
    started = logs.parent / "started"
    deaf = f"trap '' TERM; sleep 100 & echo $! $$ >{started}; wait; sleep 100"
    words = ["sh", "-c", f'setsid sh -c "{deaf}" & sleep 1; kill -TERM {os.getpid()}; wait'.replace("$", "\\$")]
    with pytest.raises(KeyboardInterrupt):
        steps.step("it is ended", words)
    pids = started.read_text().split()
    assert len(pids) == 2 and all(map(has_ended, pids))


STEP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from development import steps
steps.LOGS = Path(sys.argv[2])
steps.ROOT = steps.LOGS.parent
steps.step("it is ended", ["sh", "-c", sys.argv[3]])
"""


def step_elsewhere(logs: Path, script: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A process of its own that does a step, and the file into which this writes its number."""
    started = logs.parent / "started"
    words = [sys.executable, "-c", STEP, ROOT / "scripts", logs, script.replace("STARTED", str(started))]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not started.exists() or not started.read_text():
        time.sleep(0.05)
    return child, started


def test_who_presses_it_twice_ends_them_too(logs: Path) -> None:
    """While it waits for who doesn't listen."""
    deaf = "trap '' TERM; echo \\$\\$ >STARTED; sleep 100; sleep 100"
    child, started = step_elsewhere(logs, f'setsid sh -c "{deaf}" & wait')
    for _ in range(3):
        child.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert child.wait(300) != 0 and has_ended(started.read_text())


def test_a_step_ends_with_who_is_killed(logs: Path) -> None:
    child, started = step_elsewhere(logs, "echo $$ >STARTED; exec sleep 100")
    child.kill()
    child.wait()
    assert has_ended(started.read_text())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_so_does_who_can_write_no_more(
    logs: Path, interrupts: None, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """A pipe whose reader has been ended by the same Ctrl-C, or a terminal that was closed."""
    started = logs.parent / "started"
    ends = "" if is_terminal else f"kill -TERM {os.getpid()}; "
    reader, writer = os.pipe()
    os.close(reader)
    out = open(writer, "w")
    out.isatty = lambda: is_terminal  # type: ignore[method-assign]
    words = ["sh", "-c", f"sleep 100 & echo $! >{started}; sleep 1; {ends}wait"]
    told = print

    def begins(*words: object, **more: object) -> None:
        if not str(words[0]).startswith("it is ended"):  # the line's beginning, which was written before
            told(*words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(steps, "print", begins, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(BrokenPipeError if is_terminal else KeyboardInterrupt):
        steps.step("it is ended", words)
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        out.close()
    assert has_ended(started.read_text())


def test_what_only_root_can_end_is_waited_for(
    logs: Path, interrupts: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As sudo's apt-get, which leaves half of a package when it is ended."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    with pytest.raises(KeyboardInterrupt):
        steps.step("apt-get update", ["sh", "-c", f"sleep 1; kill -TERM {os.getpid()}; sleep 1; touch finished"])
    assert (logs.parent / "finished").exists()
    assert "\napt-get update runs as root and goes on: waiting for its end\n" in capsys.readouterr().out


def test_what_can_not_be_written_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(words: Sequence[str]) -> None:
        raise errors.pop(0)

    errors = [PermissionError(13, "Permission denied", "build/logs/x.log"), OSError(28, "No space left on device")]
    monkeypatch.setitem(dev.COMMANDS, "clean", refuse)
    said = "dev: build/logs/x.log: Permission denied; another user's ./dev, as root's, may have made it\n"
    assert dev.main(["clean"]) == 2 and capsys.readouterr().err == said
    assert dev.main(["clean"]) == 2 and capsys.readouterr().err == "dev: No space left on device\n"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, logs: Path) -> list[str]:
    """Builds that do nothing, in place of all that is installed and built; what is started is a line of the list."""
    started: list[str] = []

    def execute(program: str | Path, *words: str) -> None:
        started.append(f"{os.getcwd()}: {' '.join(words)}")

    monkeypatch.setattr(build, "prepare", lambda *groups: None)
    monkeypatch.setattr(environment, "install_laboratory", lambda requirements: None)
    monkeypatch.setattr(environment, "HAKMEM", Path(sys.executable).with_name("hakmem"))
    monkeypatch.setattr(build, "_build", lambda preset, definitions, targets: steps.step("build", ["true"]))
    monkeypatch.setattr(dev, "execute", execute)
    return started


def test_the_laboratory_has_the_output_and_the_folder_of_who_calls_it(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for words in (["demo", "--json", "-"], ["bench", "larson"], ["lab", "health"]):
        dev.main(words)
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("build  ") and said.err.endswith("ok\n")
        assert made.pop() == f"{tmp_path}/other: {' '.join(words).removeprefix('lab ')}"
    assert dev.main(["build"]) == 0 and capsys.readouterr().out.startswith("build  ")


@pytest.mark.parametrize("words", (["--foo"], ["-n", "abc"], ["--json"], ["--help"], ["-h"]))
def test_nothing_is_built_for_words_that_run_no_demo(
    made: list[str], capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The demo itself tells of them, once."""
    dev.main(["demo", *words])
    assert capfd.readouterr() == ("", "") and made[0].endswith(f": demo {' '.join(words)}")


def test_tests_have_no_settings_of_git_s_but_their_own(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[commit]\n\tgpgsign = true\n")
    words = ["git", "config", "--list", "--show-scope"]
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=home, capture_output=True, text=True, check=True)
    assert done.stdout == "global\tsafe.directory=*\n"


def test_settings_of_the_tests_are_left_out_too() -> None:
    names = ["HAK_TEST_ALLOW_ANY", "HAK_TEST_SECONDS", "HAK_TEST_SEED", "CMOCKA_MESSAGE_OUTPUT", "HAKMEM_THP"]
    environment = dict.fromkeys([*names, "HOME"], "1")
    assert steps.leave_out(environment, steps.SETTINGS) == sorted(names)
    assert not set(names) & set(environment) and environment["HOME"] == "1"


def test_cases_that_a_test_has_left_out_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tally, results = steps.Tally(), tmp_path / "results.xml"
    monkeypatch.setattr(steps, "step", lambda *words: results.write_text(CTEST) > 0)
    tally.tests("test release", ["ctest"], results)
    assert "release: unit.a: its case locked_memory" in tally.skipped
    asked: list[Sequence[str | Path]] = []
    monkeypatch.setattr(steps.Tally, "tests", lambda self, title, command, results: asked.append(command))
    monkeypatch.setattr(build, "tool", lambda name: name)
    testing._ctest(tally, "release", "quick", [])
    assert asked[0][asked[0].index("--test-output-size-passed") + 1] == "100000"  # a kilobyte unless told


def test_a_large_file_of_somebody_s_is_read_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A core dump, say; and one of an editor's that is gone again."""
    with (tmp_path / "core").open("wb") as file:
        file.truncate(64 << 20)
    monkeypatch.setattr(testing, "ROOT", tmp_path)
    monkeypatch.setattr(testing, "listed", lambda: ["core", "gone.swp"])
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("all of it at once"))
    assert list(testing._tree()) == ["core"]


def test_a_build_that_fails_is_a_failure(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing."""
    monkeypatch.setattr(build, "_build", lambda *words: False)
    for name in ("demo", "bench", "lab", "build"):
        assert dev.main([name]) == 1
    monkeypatch.setattr(dev.lint, "clang_format", lambda: "false")
    assert dev.main(["fmt"]) == 1 and not made


CTEST = """<testsuite tests="4">
<testcase name="unit.a" classname="unit.a" time="1.5" status="run"><system-out>[ RUN      ] locked_memory
[  SKIPPED ] locked_memory
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] locked_memory
[  SKIPPED ] other
</system-out></testcase>
<testcase name="unit.b" classname="unit.b" time="0.5" status="fail"><failure message="Failed"/></testcase>
<testcase name="api.c" classname="api.c" time="0.25" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>begins
skipped: ruby is not installed
</system-out></testcase>
<testcase name="model_d" classname="model_d" time="2" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
</testcase></testsuite>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="lab.tests.test_a" name="test_it[1]" time="0.5"/>
<testcase classname="lab.tests.test_a" name="test_that" time="0.5"><error message="x">at</error></testcase>
<testcase classname="lab.tests.test_b" name="test_it" time="1"><skipped message="no luck">where</skipped></testcase>
</testsuite></testsuites>"""


def test_results_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(CTEST)
    ctest = junit.read(tmp_path / "a.xml")
    assert [case.outcome for case in ctest] == ["passed", "failed", "skipped", "skipped"]
    assert [case.said for case in ctest[2:]] == ["ruby is not installed", junit.SILENT]
    assert [case.left_out for case in ctest] == [("locked_memory", "other"), (), (), ()]
    assert junit.by_group(ctest) == {"unit": (2, 2.0), "api": (1, 0.25), "model": (1, 2.0)}
    odd = """<testsuite><testcase name="e" classname="e" status="notrun"><skipped message="Unable to find executable"/>
</testcase><testcase name="f" classname="f" status="disabled"/></testsuite>"""
    (tmp_path / "e.xml").write_text(odd)
    assert [case.outcome for case in junit.read(tmp_path / "e.xml")] == ["failed", "skipped"]
    (tmp_path / "b.xml").write_text(PYTEST)
    ran = junit.read(tmp_path / "b.xml")
    assert [(case.name, case.outcome) for case in ran] == [
        ("lab.tests.test_a::test_it[1]", "passed"),
        ("lab.tests.test_a::test_that", "failed"),
        ("lab.tests.test_b::test_it", "skipped"),
    ]
    assert ran[2].said == "no luck" and junit.by_group(ran)["lab.tests.test_a"] == (2, 1.0)
    (tmp_path / "c.xml").write_text(PYTEST[:100])
    assert junit.read(tmp_path / "c.xml") == junit.read(tmp_path / "d.xml") == []


def test_tests_are_counted(tmp_path: Path) -> None:
    tally = Tally()
    results = tmp_path / "results.xml"
    tally.tests("test release", ["sh", "-c", f"cat >{results} <<'END'\n{CTEST}\nEND\nexit 1"], results)
    assert (tally.passed, tally.failed, tally.executed) == (1, 1, 2)
    assert tally.skipped[0] == "release: api.c: ruby is not installed"


def test_a_command_that_fails_without_a_test_to_blame_has_failed(tmp_path: Path) -> None:
    """As one that is killed before it writes its results does; those of the run before don't count."""
    tally = Tally()
    results = tmp_path / "results.xml"
    results.write_text(CTEST)
    tally.tests("test release", ["false"], results)
    assert (tally.passed, tally.failed, tally.executed) == (0, 1, 0)


@pytest.mark.parametrize("left", ["", "<testsuites></testsuites>", CTEST[:200]])
def test_a_suite_that_ends_well_without_results_has_failed(
    logs: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    results = logs.parent / "results.xml"
    tally = Tally()
    tally.tests("test release", ["sh", "-c", f"printf '%s' '{left}' >{results}" if left else "true"], results)
    assert (tally.passed, tally.failed, tally.executed) == (0, 1, 0)
    assert capsys.readouterr().out.endswith("\ntest release has left no results in results.xml\n")


# ---- Groups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "prepare", lambda *groups: None)
    monkeypatch.setattr(packages, "try_to_install", lambda groups: None)
    monkeypatch.delenv("CI", raising=False)


def run(monkeypatch: pytest.MonkeyPatch, tally: Tally) -> int:
    monkeypatch.setitem(testing.GROUPS, testing.QUICK, (lambda given: given.__dict__.update(tally.__dict__), [], []))
    return testing.run(testing.QUICK)


def test_the_last_line_tells_the_sums(
    ready: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, Tally(passed=3, executed=3)) == 0
    assert capsys.readouterr().out.endswith("\n3 passed, 0 failed\n")
    assert run(monkeypatch, Tally(passed=3, failed=1, skipped=["release: a: no rights"], executed=3)) == 1
    assert capsys.readouterr().out.endswith("\n3 passed, 1 failed, 1 skipped\n")


def test_a_run_without_a_test_has_failed(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Tally(passed=3)) == 1


def test_in_ci_a_missing_package_is_a_failure(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wanting = ["release: programs.lua: lua is not installed (Debian's package lua5.4)"]
    assert run(monkeypatch, Tally(passed=1, executed=1, skipped=wanting)) == 0
    monkeypatch.setenv("CI", "true")
    assert run(monkeypatch, Tally(passed=1, executed=1, skipped=["release: a: no rights"])) == 0
    assert run(monkeypatch, Tally(passed=1, executed=1, skipped=wanting)) == 1


def test_a_program_that_is_not_there_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is there and may do nothing is none."""
    assert {"strace", "perl-base", "util-linux", "valgrind"} <= {package for package, _ in packages.needs(["test"])}
    said = {"": "strace is not installed (Debian's package strace)", "false": "strace does not work here: 1"}
    for there, refusal in said.items():
        monkeypatch.setattr(shutil, "which", lambda name, there=there: there or None)
        monkeypatch.setattr(cases.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1, "", ""))
        assert cases.strace_refusal() == refusal
        assert bool(testing.WANTING.search(refusal)) != bool(there)


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed (Debian's package git)")
def test_a_test_that_changes_the_tree_is_found(
    ready: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever had been changed before. A commit is nobody's fault but the developer's."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("logs\n")
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text("old\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    for name in ("one", "two", "new"):
        (tmp_path / name).write_text("edited\n")

    def said(work: Callable[[], object]) -> list[str]:
        def whole(tally: Tally) -> None:
            tally.passed = tally.executed = 1
            work()

        monkeypatch.setitem(testing.GROUPS, testing.QUICK, (whole, [], []))
        status = testing.run(testing.QUICK)
        (*lines, _, _) = capsys.readouterr().out.splitlines()
        assert status == bool(lines)
        return lines

    told = "The tests have changed the tree:"
    assert not said(lambda: None)
    assert said(lambda: (tmp_path / "one").write_text("again\n")) == [told, "    one"]
    assert said(lambda: (tmp_path / "new").write_text("again\n")) == [told, "    new"]
    assert said(lambda: (tmp_path / "more").write_text("")) == [told, "    more"]
    assert said(lambda: (tmp_path / "three").unlink()) == [told, "    three"]
    assert said(lambda: (tmp_path / "two").chmod(0o755)) == [told, "    two"]
    assert said(lambda: git(tmp_path, "checkout", "two")) == [told, "    two"]
    assert not said(lambda: git(tmp_path, "commit", "-qam", "more"))


def test_each_group_asks_for_tests_that_no_other_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """By labels of CTest's and marks of pytest's."""
    asked: dict[str, list[tuple[str, str]]] = {}
    monkeypatch.setattr(environment, "install_laboratory", lambda requirements: None)
    monkeypatch.setattr(build, "whole", lambda preset, *targets: True)
    monkeypatch.setattr(build, "tool", Path)
    monkeypatch.setattr(Tally, "check", lambda tally, title, *commands: True)
    monkeypatch.setattr(testing.lint, "clang_format", lambda: "clang-format")
    monkeypatch.setattr(Tally, "tests", lambda tally, title, command, results: asked[group].append(
        (title.removeprefix("test "), " ".join(map(str, command[-2:])) if "ctest" in str(command[0]) else command[8])
    ))  # fmt: skip
    for group, (work, _, _) in testing.GROUPS.items():
        asked[group] = []
        work(Tally())
    rest, forms, long = "-LE ^(forms|long)$", "-L ^forms$", "-L ^long$"
    assert asked[testing.QUICK] == [("release", rest), ("laboratory", "not forms and not long"), ("sanitize", rest)]
    assert asked["--forms"] == [
        ("release, forms", forms),
        ("laboratory, forms", "forms and not long"),
        ("sanitize, forms", forms),
        ("tsan, forms", "-LE ^long$"),
    ]
    assert asked["--long"] == [(f"{preset}, long", long) for preset in ("release", "sanitize", "tsan")] + [
        ("lto, long", rest),
        ("laboratory, long", "long"),
    ]


def test_times_are_written_into_their_table(logs: Path) -> None:
    page = logs.parent / "CONTRIBUTING.md"
    table = "| run | group | tests | seconds |\n|---|---|--:|--:|\n"
    kept = "| quick-laboratory | a | 1 | 1 |\n| long-release | a | 1 | 1 |\n"
    page.write_text(
        f"before\n{testing.TIMES[0]}{table}{kept}| quick-release | old | 1 | 1 |\n{testing.TIMES[1]}\nafter\n"
    )
    with pytest.raises(Stop, match="no results of tests"):
        testing.write_times()
    logs.mkdir()
    (logs / "quick-release.xml").write_text(CTEST)
    (logs / "forms-laboratory.xml").write_text(PYTEST)
    (logs / "long-release.xml").write_text(PYTEST[:100])
    testing.write_times()
    assert page.read_text().startswith(f"before\n{testing.TIMES[0]}{table}| quick-laboratory | a | 1 | 1 |\n")
    assert page.read_text().endswith(f"\n| long-release | a | 1 | 1 |\n{testing.TIMES[1]}\nafter\n")
    runs = re.findall(r"^\| (\w+-\w+) ", page.read_text(), re.MULTILINE)
    assert list(dict.fromkeys(runs)) == ["quick-laboratory", "quick-release", "forms-laboratory", "long-release"]
    assert "\n| quick-release | unit | 2 | 2 |\n" in page.read_text() and "old" not in page.read_text()


def test_a_full_disk_leaves_the_page(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = logs.parent / "CONTRIBUTING.md"
    page.write_text(before := f"before\n{testing.TIMES[0]}{testing.TIMES[1]}\nafter\n")
    logs.mkdir()
    (logs / "quick-release.xml").write_text(CTEST)

    def refuse(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(testing.shutil, "copymode", refuse)
    with pytest.raises(OSError, match="No space"):
        testing.write_times()
    assert page.read_text() == before


@pytest.mark.parametrize("marks", ["", testing.TIMES[0]])
def test_a_page_without_a_table_of_times_stays(logs: Path, marks: str) -> None:
    page = logs.parent / "CONTRIBUTING.md"
    page.write_text(f"before\n{marks}after\n")
    logs.mkdir()
    (logs / "quick-release.xml").write_text(CTEST)
    with pytest.raises(Stop, match="has no lines <!-- times --> and <!-- /times -->: nothing was written"):
        testing.write_times()
    assert page.read_text() == f"before\n{marks}after\n"
