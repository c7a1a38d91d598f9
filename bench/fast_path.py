"""Checks how little BenchFast does on x86-64: the instructions that malloc and free take from their first one straight
to ret, counted as hakmem's own are in tests/unit/hit_path.py.

    fast_path.py LIBRARY

Exit code 0 when all holds, 1 with the findings, 77 where the library is for another processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
from hit_path import SKIPPED, Limit, disassemble, findings, run

LIMITS = {
    "malloc": Limit(14, 2),  # is it small? is there a block?
    "free": Limit(12, 1),  # is there a slot?
}


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print("usage: fast_path.py LIBRARY", file=sys.stderr)
        return 2
    library = Path(sys.argv[1])
    if "file format elf64-x86-64" not in run("objdump", "-f", str(library)):
        print("not a library for x86-64: skipped")
        return SKIPPED
    listings = disassemble(library, "objdump", "nm")
    found = [f"{name}: not exported" for name in LIMITS if name not in listings]
    for name, listing in listings.items():
        found += findings(name, listing, LIMITS[name])
    print(*found or ["malloc and free keep within their limits"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
