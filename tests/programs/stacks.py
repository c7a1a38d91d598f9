"""stacks.py: the heap profile of programs that were compiled without frame pointers has whole stacks: in 95 of 100
samples the outermost address is in the program's _start, which calls main by way of the C library.

    stacks.py --lib LIBRARY --through-libstdcxx PROGRAM
"""

from __future__ import annotations

import argparse
import shutil
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from on_hakmem import GLIBC, SKIPPED, Failure, LabError, ending, hakmem, process, programs

LEAST_SHARE = 0.95
LEAST_SAMPLES = 200
START_BYTES = 64  # of _start; the call in it is near its end
SQL = """create table t(a, b);
with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000) insert into t select x, hex(x) from c;
create index i on t(b);
select count(*), max(length(x)) from (select group_concat(t.b) as x from t join t u on t.b = u.b);"""
PYTHON = """import ast, collections, decimal, json, re
data = [{'a': [i, str(i), {'x': i}]} for i in range(3000)]
print(len(json.dumps(data)), json.loads(json.dumps(data)) == data)
print(len(ast.dump(ast.parse(open(json.__file__).read()))), sum(map(len, sorted(map(str, range(10000))))))"""
PERL = """my %h; $h{"k$_"} = [$_, "x" x ($_ % 100)] for 1 .. 30000;
print join(",", map { length $h{$_}[1] } sort keys %h);"""


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]
    module: str = ""  # one that memory is asked for by: the innermost address of some samples


@dataclass(frozen=True)
class Stack:
    samples: int
    addresses: tuple[int, ...]


def entry_of(program: str, base: int) -> int:
    """Where _start is in memory, by the header of the ELF file."""
    with open(program, "rb") as file:
        header = file.read(64)
    is_moved, entry = struct.unpack_from("<H", header, 16)[0] == 3, struct.unpack_from("<Q", header, 24)[0]
    return int(entry) + (base if is_moved else 0)


def read(path: Path) -> tuple[list[Stack], list[tuple[int, int, str]]]:
    lines = path.read_text().splitlines()
    maps = [line.split() for line in lines[lines.index("maps") + 1 :]]
    modules = [(*(int(x, 16) for x in words[0].split("-")), words[5]) for words in maps if len(words) > 5]
    sites = [line.removeprefix("site ").split(":") for line in lines if line.startswith("site ")]
    return [Stack(int(raw.split()[0]), native(addresses)) for raw, addresses in sites], modules


def native(words: str) -> tuple[int, ...]:
    """Without places in functions of Python, which follow the addresses and have the highest bit."""
    return tuple(word for word in (int(x, 16) for x in words.split()) if word < 1 << 63)


def check(case: Case, library: Path, folder: Path) -> str:
    file = folder / f"{case.name}.prof"
    settings = {"HAKMEM_HEAP_PROFILE": f"1:{file}", "HAKMEM_HEAP_PROFILE_INTERVAL": "2K", "HAKMEM_BACKGROUND": "0"}
    environment = programs.environment(folder)
    expected = process.run(list(case.words), GLIBC, environment=environment)
    found = process.run(list(case.words), hakmem(library), settings, environment=environment)
    if (found.status, found.stdout) != (expected.status, expected.stdout) or found.status != 0:
        raise Failure(f"{ending(found.status)}, stderr {found.stderr[:200]!r}; on glibc {ending(expected.status)}")
    stacks, modules = read(file)
    path = str(Path(case.words[0]).resolve())
    start = entry_of(path, min(start for start, _, name in modules if name == path))
    samples = sum(stack.samples for stack in stacks)
    whole = sum(stack.samples for stack in stacks if start <= stack.addresses[-1] < start + START_BYTES)
    told = f"{whole} of {samples} samples reach _start"
    if samples < LEAST_SAMPLES or whole < LEAST_SHARE * samples:
        raise Failure(told)
    if case.module and not any(is_from(stack, case.module, modules) for stack in stacks):
        raise Failure(f"{told}; {case.module} asks for nothing")
    return told


def is_from(stack: Stack, module: str, modules: list[tuple[int, int, str]]) -> bool:
    """Memory was asked for by the module: it has the innermost address that isn't the library's own."""
    owners = (next((name for start, end, name in modules if start <= at < end), "") for at in stack.addresses)
    return module in next((owner for owner in owners if "libhakmem" not in owner), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--through-libstdcxx", type=Path, required=True)
    arguments = parser.parse_args()
    cases = [
        Case("sqlite3", ("/usr/bin/sqlite3", ":memory:", SQL), "libsqlite3"),
        Case("python3", ("/usr/bin/python3", "-c", PYTHON)),
        Case("perl", ("/usr/bin/perl", "-e", PERL)),
        Case("libstdcxx", (str(arguments.through_libstdcxx),), "libstdc++"),
    ]
    failures = run = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if shutil.which(case.words[0]) is None:
                print(f"{case.name}: skipped: not installed")
                continue
            run += 1
            try:
                outcome = check(case, arguments.lib, Path(folder))
            except LabError as failure:
                failures, outcome = failures + 1, f"FAILED: {failure}"
            print(f"{case.name}: {outcome}", flush=True)
    return 1 if failures else 0 if run else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
