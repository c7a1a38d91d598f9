"""What `./dev` starts: one function for each of its commands."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from development import build, environment, lint, packages, steps, testing
from development.steps import ROOT, Command, Stop, Tally

HELP = """The one way to build, test and show hakmem, the same on a desk and in CI.

  ./dev demo [--all] [ARG...]  programs you know and a service, on glibc and on hakmem, side by side
  ./dev test                   what a change can break: lint, build, tests, the laboratory, two sanitizers
  ./dev test --forms           secure and hardened forms, other ways to link, TSan, models, servers, sandboxes
  ./dev test --long            what takes hours: mutants, packages, deep fuzzing
  ./dev times                  writes the times of the last tests into CONTRIBUTING.md
  ./dev build [PRESET]         release unless told; CMakePresets.json has them all; result in build/PRESET
  ./dev lint                   the rules of this repository, format, clang-tidy
  ./dev fmt                    formats the C and C++ sources
  ./dev fuzz [afl] [ARG...]    libFuzzer or AFL++ on tests/fuzz, until it is stopped or has found something
  ./dev bench [ARG...]         the benchmarks (hakmem bench)
  ./dev lab [ARG...]           builds all that the laboratory runs, then runs `hakmem ARG...`
  ./dev package [KIND...]      packages in build/packages, each built and tested; all unless told
  ./dev clean                  removes build/
  ./dev help                   this

It installs what is missing with apt, as root or by sudo without a password; else it says what to type. It owns
build/, with the output of every step in build/logs/, .venv/ and .dev.lock. One waits for another in the same clone.
What demo, bench and lab start runs in the folder that you are in, and has standard output to itself. `test` ends with
the tests that were skipped; with CI=true, a test that was skipped for want of a package has failed. Exit status: 1 for
a failure, 2 where something is missing, 130 for Ctrl-C."""


def execute(program: str | Path, *words: str) -> NoReturn:
    sys.stdout.flush()
    os.execv(program, [str(program), *words])


def _would_measure(words: Sequence[str]) -> bool:
    """Not so where the demo only shows its help, or tells of a wrong word: nothing is built for that."""
    reads = "import sys; from hakmem.commands import demo; demo.command.make_context('demo', sys.argv[1:])"
    asked: Command = [environment.HAKMEM.with_name("python3"), "-I", "-c", reads, *words]
    return subprocess.run(asked, capture_output=True).returncode == 0


def demo(words: Sequence[str]) -> int:
    build.prepare()
    environment.install_laboratory(environment.BASE)
    if _would_measure(words) and not build.programs(*build.PROGRAMS):
        return 1
    execute(environment.HAKMEM, "demo", *words)


def test(words: Sequence[str]) -> int:
    if words and (words[0] == testing.QUICK or words[0] not in testing.GROUPS):
        raise Stop(f"test takes --forms or --long, or nothing; not {words[0]}")
    return testing.run(words[0] if words else testing.QUICK)


def times(words: Sequence[str]) -> None:
    testing.write_times()


def build_preset(words: Sequence[str]) -> int:
    preset = words[0] if words else "release"
    build.expect_preset(preset)
    build.prepare(*(["test"] if preset != "musl" else []), *([preset] if preset in ("clang", "musl") else []))
    return 0 if build.whole(preset) else 1


def lint_all(words: Sequence[str]) -> int:
    build.prepare("test", "lint")
    tally = Tally()
    lint.quick(tally)
    if build.whole("release", "hakmem"):
        lint.clang_tidy(tally)
    else:
        tally.failed += 1
    return 1 if tally.failed else 0


def fmt(words: Sequence[str]) -> int:
    build.prepare()
    return 0 if lint.format_sources() else 1


def laboratory(*words: str) -> int:
    """Builds all that its commands run, and runs it with these words, if there are any."""
    build.prepare()
    environment.install_laboratory(environment.ALL)
    if not build.programs(*build.EVERYTHING):
        return 1
    if words:
        execute(environment.HAKMEM, *words)
    return 0


def bench(words: Sequence[str]) -> int:
    return laboratory("bench", *words)


def lab(words: Sequence[str]) -> int:
    return laboratory(*words)


def fuzz(words: Sequence[str]) -> int:
    os.chdir(ROOT)
    os.environ |= {"HAKMEM_BACKGROUND": "0", "HAKMEM_CTL": "0"}  # a program of calls is to repeat
    if words[:1] == ["afl"]:
        build.prepare("test", "afl")
        if not build.whole("afl"):
            return 1
        settings = ("AFL_SKIP_CPUFREQ", "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "AFL_AUTORESUME")
        os.environ |= dict.fromkeys(settings, "1")
        options = ["-m", "none", "-t", "20000", "-i", "tests/fuzz/corpus", "-o", "build/afl/results"]
        program = ["--", "build/afl/tests/fuzz/fuzz_afl"]
        execute(shutil.which("afl-fuzz") or "afl-fuzz", *options, *words[1:], *program)
    build.prepare("test", "clang", later=["fuzz"])
    packages.install(["fuzz"])  # which package that is depends on the clang that is there now
    if not build.whole("fuzz"):
        return 1
    (ROOT / "build/fuzz/corpus").mkdir(parents=True, exist_ok=True)
    options = ["-max_len=808", "-timeout=60", "-rss_limit_mb=0", "-detect_leaks=0", "-artifact_prefix=build/fuzz/"]
    execute("build/fuzz/tests/fuzz/fuzz_libfuzzer", *options, *words, "build/fuzz/corpus", "tests/fuzz/corpus")


def package(words: Sequence[str]) -> int:
    tally = Tally()
    for kind in words or packages.KINDS:
        if kind not in packages.KINDS:
            raise Stop(f"there is no package {kind}; there are {' '.join(packages.KINDS)}")
        try:
            _package(kind, tally)
        except Stop as stop:
            print(f"dev: {stop}", file=sys.stderr)
            tally.failed += 1
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


def _package(kind: str, tally: Tally) -> None:
    build.prepare(later=[kind])
    if kind == "debian":  # its build takes the system's CMake
        packages.install(["cmake"])
        if environment.version_of("/usr/bin/cmake") < build.LEAST:
            raise Stop("Debian packages are made on Debian 12, Ubuntu 24.04 or later; here take ./dev package wheel")
    packages.install([kind])
    environment.install_laboratory(environment.ALL)
    environment.pip("pip install (packaging)", "-r", "packaging/requirements.txt")
    if tally.check(f"package {kind}", [f"packaging/{kind}.sh"]):
        tally.check(f"test package {kind}", [f"packaging/test_{kind}.sh"])


def clean(words: Sequence[str]) -> None:
    folder = ROOT / "build"
    if folder.is_symlink():
        raise Stop(f"{folder} is a link, and what it leads to may be somebody else's: remove it yourself")
    if folder.exists():
        shutil.rmtree(folder)


def show_help(words: Sequence[str]) -> None:
    print(HELP)


COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "demo": demo,
    "test": test,
    "times": times,
    "build": build_preset,
    "lint": lint_all,
    "fmt": fmt,
    "fuzz": fuzz,
    "bench": bench,
    "lab": lab,
    "package": package,
    "clean": clean,
    "help": show_help,
}


NO_HELP_OF_THEIR_OWN = ("fuzz", "package")
MOST_WORDS = {"test": 1, "times": 0, "build": 1, "lint": 0, "fmt": 0, "clean": 0, "help": 0}  # after these commands
LABORATORY = ("demo", "bench", "lab")  # what is told before these goes to standard error: their output is hakmem's
ASK_HELP = {"-h", "--help"}


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt


def _lock_file() -> IO[bytes]:
    """Not in build/, which `clean` removes. NFS locks only what may be written; another user's may be read only."""
    file = ROOT / ".dev.lock"
    try:
        lock = open(file, "ab")
    except PermissionError:
        return open(file, "rb")
    if os.fstat(lock.fileno()).st_uid == os.geteuid():
        os.fchmod(lock.fileno(), 0o644)  # whatever the umask is
    return lock


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Two of them would build the same files. A demo, a benchmark or a fuzzer holds the lock until its end."""
    if name == "help" or steps.ALONE in os.environ:
        yield
        return
    with _lock_file() as lock:
        os.set_inheritable(lock.fileno(), name in ("demo", "bench", "fuzz"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("dev: another ./dev is at work in this clone: waiting for its end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(name: str, words: Sequence[str]) -> int:
    if name in ASK_HELP or name in (*MOST_WORDS, *NO_HELP_OF_THEIR_OWN) and ASK_HELP.intersection(words):
        name, words = "help", []
    if name not in COMMANDS:
        raise Stop(f"there is no {name}; try ./dev help")
    if len(words) > (most := MOST_WORDS.get(name, len(words))):
        raise Stop(f"{name} takes {'nothing more' if most == 0 else 'one word'}; not {' '.join(words)}")
    if name != "help" and not os.access(ROOT, os.W_OK):
        raise Stop(f"you can't write in {ROOT}: work in a clone of your own")
    with _alone(name), contextlib.redirect_stdout(sys.stderr if name in LABORATORY else sys.stdout):
        return COMMANDS[name](words) or 0


def main(words: Sequence[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)
    steps.leave_out(os.environ)
    for stream in (sys.stdout, sys.stderr):  # names of files, and what tests say, may be in any script
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    name, *rest = words or ["help"]
    try:
        status = _run(name, rest)
        sys.stdout.flush()
    except Stop as stop:
        print(f"dev: {stop}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = 1  # who has read the output has enough of it
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        whose = "; another user's ./dev, as root's, may have made it" if isinstance(error, PermissionError) else ""
        print(f"dev: {where}{error.strerror or error}{whose}", file=sys.stderr)
        status = 2
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would complain at its end
    return status


if __name__ == "__main__":
    sys.stderr = sys.stderr or open(os.devnull, "w")
    if sys.stdout is None:
        print("dev: standard output is closed", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
