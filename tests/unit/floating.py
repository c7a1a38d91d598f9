"""Checks who computes with doubles in a release libhakmem.so on x86-64: who is called by a program's thread does so in
an environment of its own only (src/base/floating.h), whatever the way there.

    floating.py LIBRARY [--objdump OBJDUMP] [--nm NM]

A function that sets the environment (ldmxcsr) is trusted with all that it calls. Of every other one that computes, the
callers are looked up, and theirs, until there is one that nobody calls: that is entered from outside. A function whose
address lies in a table is called by whoever looks at the table. It doesn't see a way that begins in a circle of
functions, as each of these has a caller, nor tables whose relocations are packed (DT_RELR). Exit code 0 when all holds,
1 with the findings, 77 where the library is for another processor.
"""

from __future__ import annotations

import argparse
import bisect
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = 77
FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+(?P<text>.*)$")
NAMED = re.compile(r"<(?P<name>[^>+]+)(?:\+0x[0-9a-f]+)?>")
COMPUTES = re.compile(r"v?(?:(?:add|sub|mul|div|sqrt|min|max|u?comi|fn?m(?:add|sub)\w*)[sp][sd]|cvt\w+)\b")
SETS = re.compile(r"v?ldmxcsr\b")
TABLE_ENTRY = re.compile(r"^([0-9a-f]+) R_X86_64_RELATIVE\s+\*ABS\*\+0x([0-9a-f]+)$", re.MULTILINE)


@dataclass
class Code:
    computing: set[str] = field(default_factory=set)
    trusted: set[str] = field(default_factory=set)
    callers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # or who refers to it


def read_code(listing: str) -> Code:
    code = Code()
    name = ""
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            name = match["name"]
        elif match := INSTRUCTION.match(line):
            if COMPUTES.match(match["text"]):
                code.computing.add(name)
            if SETS.match(match["text"]):
                code.trusted.add(name)
            for other in NAMED.findall(match["text"]):
                if other != name:
                    code.callers[other].add(name)
    return code


def add_tables(code: Code, symbols: str, relocations: str) -> None:
    """Whoever refers to an object with the address of a function in it may call that."""
    functions: dict[int, str] = {}
    objects: list[tuple[int, str]] = []
    for line in symbols.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in "tT":
            functions[int(words[0], 16)] = words[2]
        elif len(words) == 3 and words[1] in "dDrRbB":
            objects.append((int(words[0], 16), words[2]))
    objects.sort()
    for place, target in TABLE_ENTRY.findall(relocations):
        at = bisect.bisect_right(objects, (int(place, 16), "\U0010ffff")) - 1
        if int(target, 16) in functions and at >= 0:
            code.callers[functions[int(target, 16)]] |= code.callers[objects[at][1]]


def ways_in(code: Code, name: str) -> list[list[str]]:
    """From functions that nobody calls to this one, past none that is trusted."""
    found: list[list[str]] = []
    seen, left = {name}, [[name]]
    while left:
        way = left.pop()
        callers = code.callers[way[0]]
        if not callers:
            found.append(way)
        for caller in sorted(callers - seen - code.trusted):
            seen.add(caller)
            left.append([caller, *way])
    return found


def findings(code: Code) -> list[str]:
    ways = [way for name in sorted(code.computing - code.trusted) for way in ways_in(code, name)]
    return [f"computes in a thread of the program's: {' -> '.join(way)}" for way in ways]


def check_myself() -> list[str]:
    """That a way in is found: by calls, by jumps and by tables; and none past who sets the environment."""
    listing = """
0000000000001000 <compute>:
    1000:\tmulsd  %xmm1,%xmm0
0000000000001010 <of_a_table>:
    1010:\tjmp    1000 <compute>
0000000000001020 <report>:
    1020:\tlea    0x2fd9(%rip),%rax        # 4000 <table>
0000000000001030 <thread>:
    1030:\tldmxcsr 0x8(%rsp)
    1034:\tcall   1000 <compute>
"""
    code = read_code(listing)
    add_tables(code, "0000000000001010 t of_a_table\n0000000000004000 d table\n",
               "0000000000004008 R_X86_64_RELATIVE  *ABS*+0x0000000000001010\n")
    found = findings(code)
    expected = ["computes in a thread of the program's: report -> of_a_table -> compute"]
    return [] if found == expected else [f"self-check: {found}"]


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()
    library = str(options.library)
    if "file format elf64-x86-64" not in run(options.objdump, "-f", library):
        print("not a library for x86-64: skipped")
        return SKIPPED
    code = read_code(run(options.objdump, "-d", "--no-show-raw-insn", library))
    add_tables(code, run(options.nm, library), run(options.objdump, "-R", library))
    print(f"{len(code.computing)} functions compute with doubles, {len(code.trusted)} set the environment")
    found = check_myself() + findings(code)
    if not code.computing or not code.trusted:
        found.append("no function computes with doubles, or none sets the environment")
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
