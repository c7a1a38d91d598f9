"""Mutants of logic: small faults of the kind that people make, each of which a test must notice.

    mutants.py --check --build BUILD    each mutant's original text is in its file exactly once, and its test exists
    mutants.py --work FOLDER [WORD...]  makes each mutant (those whose file, test or reason has one of the words) in a
                                        copy of the tree, builds its test, and runs it
    --list FILE                         the list to read, mutants.toml if none is given; may be given several times
    --json FILE                         writes one row for each mutant that was made: the answer, and how long it took

A list is a TOML file of [[mutant]] tables. fixes.toml takes past fixes back: `fix` is the commit of the fix.

Exit status 1 when a mutant survives, when it does not compile, or when its text is gone. What
is lived through is the fault of the tests: the missing one is to be written, not the mutant to be dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    try:
        import tomli as tomllib  # type: ignore[no-redef]
    except ModuleNotFoundError:
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 30  # that a test may take; one that hangs has noticed
TIMES_AS_LONG = 10
MOST_SECONDS = 1800


@dataclass(frozen=True)
class Mutant:
    file: str
    original: str
    replacement: str
    test: str
    why: str
    harness: str = ""  # of the model checker, where one is enough
    fix: str = ""  # the commit that the mutant takes back

    @property
    def words(self) -> tuple[str, ...]:
        return ("--harness", self.harness) if self.harness else ()

    def __str__(self) -> str:
        return f"{self.file}: {self.why} ({self.test}{self.fix and ', ' + self.fix})"


def read_list(path: Path) -> list[Mutant]:
    with open(path, "rb") as file:
        return [Mutant(**row) for row in tomllib.load(file)["mutant"]]


def commands_of_tests(build: Path) -> dict[str, list[str]]:
    """What CTest runs; unlike `ctest --show-only` also for programs that are not built yet."""
    commands = {}
    for file in build.rglob("CTestTestfile.cmake"):
        for name, words in re.findall(r"^add_test\((\S+) (.*)\)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            commands[name.removeprefix("[=[").removesuffix("]=]").strip('"')] = shlex.split(words)
    return commands


def faults_of(mutant: Mutant, root: Path, tests: dict[str, list[str]]) -> list[str]:
    path = root / mutant.file
    count = path.read_text(encoding="utf-8").count(mutant.original) if path.is_file() else 0
    faults = [] if count == 1 else [f"its original text is there {count} times"]
    if mutant.test not in tests:
        faults.append("there is no such test")
    if mutant.original == mutant.replacement:
        faults.append("nothing changes")
    return faults


def check(mutants: list[Mutant], root: Path, tests: dict[str, list[str]]) -> int:
    found = [f"{mutant}: {fault}" for mutant in mutants for fault in faults_of(mutant, root, tests)]
    print("\n".join(found) if found else f"{len(mutants)} mutants can be made")
    return 1 if found else 0


class Workshop:
    """A copy of the tree, and a build of it."""

    def __init__(self, work: Path) -> None:
        self.tree, self.build = work / "tree", work / "build"
        shutil.rmtree(self.tree, ignore_errors=True)
        # With the time of now: what an earlier build was made of may be younger than what it is made of now.
        shutil.copytree(ROOT, self.tree, copy_function=shutil.copy, symlinks=True,
                        ignore=shutil.ignore_patterns("build", ".git", ".venv", "evidence"))
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                        "-DCMAKE_C_FLAGS_DEBUG=-O1", "-DHAK_CHECK_LEVEL=1"], check=True, stdout=subprocess.DEVNULL)
        self.tests = commands_of_tests(self.build)
        self.seconds: dict[tuple[str, ...], float] = {}

    def make(self, test: str) -> bool:
        """The programs and libraries that the test's command names, and the library that it may preload."""
        targets = {"hakmem_secure" if "secure" in test else "hakmem_shared"}
        for path in map(Path, self.tests[test]):
            if not path.is_relative_to(self.build) or path.is_dir():
                continue
            library = "hakmem_secure" if "secure" in path.name else "hakmem_shared"
            targets.add(library if ".so" in path.name else path.name)
        built = subprocess.run(["cmake", "--build", self.build, "--target", *targets], capture_output=True, text=True)
        if built.returncode != 0:
            print(built.stdout[-2000:])
        return built.returncode == 0

    def passes(self, mutant: Mutant, seconds: float) -> bool:
        """Runs the test by CTest, which sets the environment for the preloaded library, or runs one harness. A test
        that is skipped does not pass: it says nothing."""
        by_ctest = ["ctest", "--test-dir", str(self.build), "--no-tests=error", "-R", f"^{re.escape(mutant.test)}$"]
        command = [*self.tests[mutant.test], *mutant.words] if mutant.words else by_ctest
        child = subprocess.Popen(command, cwd=self.build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            said, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return False
        return child.returncode == 0 and "***Skipped" not in said

    def fails_unchanged(self, mutant: Mutant) -> bool:
        """Its test fails with nothing changed, or is skipped. If not, how long it takes is noted."""
        key = (mutant.test, *mutant.words)
        if key not in self.seconds:
            if not self.make(mutant.test):
                return True
            start = time.monotonic()
            if not self.passes(mutant, MOST_SECONDS):
                return True
            self.seconds[key] = time.monotonic() - start
        return False

    def try_mutant(self, mutant: Mutant) -> str:
        if self.fails_unchanged(mutant):
            return "fails or is skipped as it is"
        path = self.tree / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.original, mutant.replacement), encoding="utf-8")
        try:
            if not self.make(mutant.test):
                return "does not compile"
            limit = max(LEAST_SECONDS, TIMES_AS_LONG * self.seconds[(mutant.test, *mutant.words)])
            return "SURVIVES" if self.passes(mutant, limit) else "noticed"
        finally:
            path.write_text(text, encoding="utf-8")


def run(mutants: list[Mutant], work: Path, results: Path | None) -> int:
    workshop = Workshop(work)
    if check(mutants, workshop.tree, workshop.tests):
        return 1
    left = 0
    rows = []
    for mutant in mutants:
        start = time.monotonic()
        answer = workshop.try_mutant(mutant)
        left += answer != "noticed"
        print(f"{answer:16} {mutant}", flush=True)
        rows.append({"file": mutant.file, "why": mutant.why, "test": mutant.test, "fix": mutant.fix, "answer": answer,
                     "seconds": round(time.monotonic() - start, 1)})
        if results is not None:
            results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(mutants)} mutants, {left} not noticed")
    return 1 if left else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--list", type=Path, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    lists = given.list or [Path(__file__).with_name("mutants.toml")]
    mutants = [mutant for path in lists for mutant in read_list(path)
               if not given.words or any(word in str(mutant) for word in given.words)]
    if given.check and given.build:
        return check(mutants, ROOT, commands_of_tests(given.build))
    if given.work:
        return run(mutants, given.work.resolve(), given.json)
    parser.error("either --check --build BUILD or --work FOLDER")


if __name__ == "__main__":
    sys.exit(main())
