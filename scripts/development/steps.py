"""Steps: commands with a title, whose output goes to a log, and the sums of their tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from development import junit

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
ALONE = "DEV_IS_ALONE"  # in the environment of a ./dev that another one has started, and waits for
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # by which somebody ends a ./dev
TAIL = 80  # lines of its output that a failed step shows
QUIET = re.compile(r"^ *[0-9]+/[0-9]+ .* Passed |^ *Start +[0-9]+: |^[^ ]*/(cc|c\+\+|clang[^ ]*) -")  # but for these

# Variables that would have steps work on something else than this clone, or leave tests out without a word: git's own
# (it sets them for hooks, and in rebase --exec), pip's and pytest's options.
OTHERS = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|COMMON_DIR|NAMESPACE|PREFIX|CONFIG"
    r"|CONFIG_PARAMETERS|CONFIG_COUNT|GRAFT_FILE|SHALLOW_FILE|IMPLICIT_WORK_TREE|NO_REPLACE_OBJECTS"
    r"|REPLACE_REF_BASE|INTERNAL_SUPER_PREFIX)"
    r"|PIP_(USER|TARGET|PREFIX|ROOT|DRY_RUN|REQUIRE_HASHES|NO_DEPS)|PYTEST_ADDOPTS|PYTEST_PLUGINS|PYTHONOPTIMIZE"
    r"|PIP_PYTHON|CDPATH|DESTDIR"
)
# Settings of allocators: tests choose their own.
SETTINGS = re.compile(
    "HAKMEM_.*|HAK_TEST_.*|FUZZ_STRICT|CMOCKA_.*|LD_PRELOAD|(MALLOC|MIMALLOC|TCMALLOC|SCUDO|SNMALLOC)_.*|GLIBC_TUNABLES|PYTHONMALLOC"
)

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PR_SET_PDEATHSIG = 1
LOOK_S, MOST_LOOKS = 0.05, 200  # at processes that are to end

Command = Sequence[str | Path]


class Stop(Exception):
    """Something is missing. The message is one line that says what it is, or what to type."""


def leave_out(environment: MutableMapping[str, str], which: re.Pattern[str] = OTHERS) -> list[str]:
    """Takes these names out of it, which it returns, and has Python take names of files as UTF-8 in each locale."""
    names = sorted(name for name in environment if which.fullmatch(name))
    for name in names:
        del environment[name]
    environment["PYTHONUTF8"] = "1"
    return names


def git(*words: str) -> str:
    """What it says of this clone; nothing where it fails, or where there is none."""
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="surrogateescape")
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def listed() -> list[str]:
    """Files that git has or would take; none where this is a part of another repository, which may ignore it."""
    if Path(git("rev-parse", "--show-toplevel").rstrip("\n")) != ROOT:
        return []
    return re.findall("[^\0]+", git("ls-files", "-z", "--cached", "--others", "--exclude-standard"))


def log_of(title: str) -> Path:
    return LOGS / f"{re.sub('[^A-Za-z0-9]', '-', title)}.log"


def step(title: str, *commands: Command, tail: int = TAIL) -> bool:
    """Runs the commands in the project's root, one after the other, until one fails. Prints a line with the title, the
    time, and whether all have succeeded; then the end of their output if one has failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    print(f"{title:28}", end="", flush=True)
    with log_of(title).open("w", encoding="utf-8") as log:
        good = all(_run(command, log, title, begin) for command in commands)
    name = log_of(title).relative_to(ROOT)
    clock = f"\r{title:28}" if sys.stdout.isatty() else ""
    print(f"{clock}{time.monotonic() - begin:5.0f} s  {'ok' if good else f'FAILED ({name})'}", flush=True)
    if not good and tail:
        lines = log_of(title).read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join([line for line in lines if not QUIET.search(line)][-tail:]), flush=True)
    return good


def _run(command: Command, log: TextIO, title: str, begin: float) -> bool:
    """A signal that comes while the child is made waits until there is one to be ended."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts can be ended with it
            preexec_fn=lambda: _begin(mask),
        )
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        log.write(f"{command[0]}: {error.strerror}\n")
        log.flush()
        return False
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return _wait(child, title, begin) == 0
    except BaseException:
        _end(child, title)
        raise


def _begin(mask: set[int | signal.Signals]) -> None:
    """In the child: it ends with this process, also where that is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(child: subprocess.Popen[bytes], title: str, begin: float) -> int:
    """On a terminal it counts the seconds meanwhile."""
    while True:
        try:
            return child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if sys.stdout.isatty():
                print(f"\r{title:28}{time.monotonic() - begin:5.0f} s", end="", flush=True)


def _end(child: subprocess.Popen[bytes], title: str) -> None:
    """With all that it has started, before anything is told: who reads that may have been ended, too."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # who presses Ctrl-C again waits, a few seconds at most
    said, others = "\n", _children()
    _adopt_orphans(True)
    try:
        os.killpg(child.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        said = f"\n{title} runs as root and goes on: waiting for its end\n"
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with contextlib.suppress(OSError):
        print(said, end="", flush=True)
    child.wait()
    _end_orphans(others)
    _adopt_orphans(False)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _adopt_orphans(adopts: bool) -> None:
    """Whoever loses its parent is this process's child from now on: tests start some in sessions of their own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def _children() -> set[int]:
    """None where the kernel doesn't tell."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return found


def _end_orphans(others: set[int]) -> None:
    """They are asked to end, and made to a second later. Those that they leave behind come next."""
    asked: dict[int, float] = {}
    for _ in range(MOST_LOOKS):
        left = _children() - others
        if not left:
            return
        for pid in left:
            is_first = pid not in asked
            waited = time.monotonic() - asked.setdefault(pid, time.monotonic())
            if is_first or waited >= 1:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM if is_first else signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(LOOK_S)


@dataclass
class Tally:
    """What was tested. A step of a whole counts as one test."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # a line for each, with its reason
    executed: int = 0  # tests that a test framework has run

    def check(self, title: str, *commands: Command) -> bool:
        good = step(title, *commands)
        self.passed += good
        self.failed += not good
        return good

    def tests(self, title: str, command: Command, results: Path) -> None:
        """Runs a command that writes what became of its tests into `results`, in JUnit's format."""
        results.unlink(missing_ok=True)
        good = step(title, command)
        cases = junit.read(results)
        failed = sum(case.outcome == "failed" for case in cases)
        where = title.removeprefix("test ")
        skipped = [f"{where}: {case.name}: {case.said}" for case in cases if case.outcome == "skipped"]
        self.skipped += skipped
        self.skipped += [f"{where}: {case.name}: its case {name}" for case in cases for name in case.left_out]
        self.passed += len(cases) - failed - len(skipped)
        self.executed += len(cases) - len(skipped)
        self.failed += failed or not (good and cases)  # it may fail without a test to blame
        if good and not cases:
            print(f"{title} has left no results in {results.relative_to(ROOT)}")
