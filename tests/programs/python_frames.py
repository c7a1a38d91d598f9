"""python_frames.py: functions of Python programs, by name and line, in the heap profile and in crash reports.

    python_frames.py --lib LIBRARY

For each interpreter that is found: the profile has, of each block that python_holder.py holds, exactly the functions
that the interpreter itself tells; of an interpreter that is not one of 3.11 to 3.13 it has none, and says why. Crash
reports tell the functions that have crashed, and those that have allocated.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from on_hakmem import GLIBC, SKIPPED, Failure, LabError, ending, hakmem, process, programs

HOLDER = Path(__file__).resolve().parent / "python_holder.py"
KNOWN = ((3, 11), (3, 12), (3, 13))
NAMES = [f"python3.{minor}" for minor in range(9, 20)]
MOST = 96  # functions of a stack
LEAST_SITES = 40
IN_PYTHON, LINE_BITS, FUNCTION_BITS = 1 << 63, 24, 38
CRASHES = {
    "access": ("ctypes.string_at(16)", "SIGSEGV at 0x10 "),
    "abort": ("os.abort()", "SIGABRT"),
    "misuse": ("libc.free(block + 16)", "invalid pointer"),
}
CRASH = """import ctypes, os, threading
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def allocate():
    return libc.malloc(300000)
def inner(block):
    {statement}
class Outer:
    def work(self):
        inner(allocate())
thread = threading.Thread(target=Outer().work)
thread.start()
thread.join()
"""


@dataclass
class Found:
    functions: dict[int, str] = field(default_factory=dict)
    stacks: dict[int, list[list[object]]] = field(default_factory=dict)  # by the largest size of a site
    head: dict[str, str] = field(default_factory=dict)


def interpreters() -> dict[str, tuple[int, int]]:
    """Paths of the real ones, and their versions."""
    places = ["/usr/bin/python3", *(shutil.which(name) for name in NAMES)]
    places += [str(path) for path in sorted((Path.home() / ".pyenv/versions").glob("*/bin/python3"))]
    ask = "import sys; print(sys.executable, *sys.version_info[:2], getattr(sys, '_is_gil_enabled', lambda: True)())"
    found = {}
    for place in filter(None, places):
        done = subprocess.run([place, "-c", ask], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.split()[3] == "True":
            path, major, minor, _ = done.stdout.split()
            found[str(Path(path).resolve())] = (int(major), int(minor))
    return found


def read(path: Path) -> Found:
    found, lines = Found(), path.read_text().split("\n")
    lines = lines[: lines.index("maps")]
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "function":
            number, _, text = rest.partition(" ")
            found.functions[int(number, 16)] = text
        elif word != "site":
            found.head[word] = rest
    figures = found.head["figures"].split()
    for line in lines:
        if line.startswith("site "):
            numbers, _, words = line[5:].partition(":")
            raw = dict(zip(figures, map(int, numbers.split())))
            found.stacks[raw["largest_size"]] = [place(found, int(x, 16)) for x in words.split() if int(x, 16) >> 63]
    return found


def place(found: Found, word: int) -> list[object]:
    function, line = word >> LINE_BITS & ((1 << FUNCTION_BITS) - 1), word & ((1 << LINE_BITS) - 1)
    return [*found.functions[function].split("\t"), line]


def profile(python: str, version: tuple[int, int], library: Path, folder: Path) -> str:
    file = folder / "some.prof"
    settings = {"HAKMEM_HEAP_PROFILE": f"1:{file}", "HAKMEM_HEAP_PROFILE_INTERVAL": "16K"}
    run = process.run([python, str(HOLDER)], hakmem(library), settings, environment=programs.environment(folder))
    if run.status != 0:
        raise Failure(f"{ending(run.status)}, stderr {run.stderr[-500:]!r}")
    expected, found = json.loads(run.stdout), read(file)
    if version not in KNOWN:
        said = found.head["without_python"]
        if found.functions or "Python" not in said or any(found.stacks.values()):
            raise Failure(f"functions of an interpreter that is not known; {said!r}")
        return f"no functions: {said}"
    if found.head["without_python"]:
        raise Failure(f"no functions: {found.head['without_python']}")
    sizes = {json.dumps(stack[:MOST]): int(size) for size, stack in expected.items()}  # the largest of each stack
    for stack, size in sizes.items():
        seen = json.dumps(found.stacks.get(size))
        if seen != stack:
            raise Failure(f"{size} bytes are from {stack[:500]}..., the profile says {seen[:500]}...")
    if len(sizes) < LEAST_SITES:
        raise Failure(f"{len(sizes)} sites are too few")
    return f"{len(sizes)} sites, {len(found.functions)} functions"


def crash(python: str, version: tuple[int, int], library: Path, folder: Path, name: str) -> str:
    statement, begins = CRASHES[name]
    program, settings = folder / "crash.py", {"HAKMEM_CRASH": "1"}
    if name == "misuse":
        settings |= {"HAKMEM_HEAP_PROFILE": "1:/dev/null", "HAKMEM_HEAP_PROFILE_INTERVAL": "4K"}
    program.write_text(CRASH.format(statement=statement))
    run = process.run([python, str(program)], hakmem(library), settings, environment=programs.environment(folder))
    said = run.stderr.decode(errors="replace") if isinstance(run.stderr, bytes) else run.stderr
    told = re.findall(r"^hakmem:   python: (.*)$", said, re.MULTILINE)
    work = [f"Outer.work ({program}:10)"]
    expected = [f"inner ({program}:7)", *work]
    if version not in KNOWN:
        if told or "no functions of Python: " not in said:
            raise Failure(f"functions of an interpreter that is not known: {said!r}")
        return "none"
    told = [line for line in told if line.endswith(f"({program}:{line.rpartition(':')[2]}")]
    if name == "misuse":
        expected += [f"allocate ({program}:5)", *work]
    if run.status >= 0 or not re.search(begins, said) or told != expected:
        raise Failure(f"{ending(run.status)}: {told}, not {expected}: {said!r}")
    return f"{len(told)} functions"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    arguments = parser.parse_args()
    failures, found = 0, interpreters()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for python, version in found.items():
            checks = {"profile": lambda: profile(python, version, arguments.lib, folder)}
            for kind in CRASHES:
                checks[kind] = lambda kind=kind: crash(python, version, arguments.lib, folder, kind)
            for kind, check in checks.items():
                try:
                    outcome = check()
                except LabError as failure:
                    failures, outcome = failures + 1, f"FAILED: {failure}"
                print(f"{python}: {kind}: {outcome}", flush=True)
    return 1 if failures else 0 if any(version in KNOWN for version in found.values()) else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
