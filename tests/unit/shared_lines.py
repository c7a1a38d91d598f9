"""Checks where a release libhakmem.so has what many threads write: each in cache lines that nothing else shares, so that a thread
that reads something else does not wait for it.

    shared_lines.py LIBRARY [--nm NM] [--objdump OBJDUMP]

What is written by many is declared so (HAK_WRITTEN_BY_MANY, base/platform.h). Exit code 0 when all holds, 1 with the findings.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass

LINE = 64

WRITTEN = [
    "away_bytes",
    "hak_pages_grown",
    "hak_pages_reused",
    "hak_out_bytes",
    "hak_slab_bytes",
    "hak_slab_holes",
    "hak_os_counters",
    "hak_shared_counters",
    "hak_heaps_in_use",
    "hak_mapping_count",
    "hak_mapping_bytes",
    "hak_dirty_units",
    "hak_owed_units",
    "hak_mappings_owed",
    "fewest_dirty_units",
    "period_start_ms",
    "kept_bytes",
    "places",
    "heap_count",
    "unused_heaps",
    "kept_heaps",
]

# Read by each hit or miss: none of these lies in a line that is written.
READ = [
    "hak_window",
    "hak_knobs",
    "hak_size_classes",
    "hak_ranges",
    "hak_bin_offsets",
    "hak_memory_is_tight",
    "hak_heaps_about",
]

# What each birth and end of a thread writes is nothing that a miss reads: not the functions whose names begin so.
BIRTHS = ["hak_heaps_in_use", "unused_heaps"]
MISSES = [
    "hak_pool_",
    "hak_heap_grow_bin",
    "hak_heap_shrink",
    "hak_front_",
    "alloc_",
    "free_",
    "refill",
    "make_room",
    "put_",
]


@dataclass(frozen=True)
class Variable:
    name: str
    start: int
    size: int

    def lines(self) -> range:
        return range(self.start // LINE, (self.start + self.size - 1) // LINE + 1)


def variables(nm: str, library: str) -> list[Variable]:
    listing = subprocess.run([nm, "-S", library], capture_output=True, text=True, check=True, timeout=600).stdout
    found = []
    for line in listing.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "bBdD" and int(words[1], 16) != 0:
            found.append(Variable(words[3].split(".")[0], int(words[0], 16), int(words[1], 16)))
    return found


def readers(objdump: str, library: str, names: list[str]) -> set[tuple[str, str]]:
    """Functions, and which of the variables each of them names."""
    listing = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True, timeout=600
    ).stdout
    found = set()
    function = ""
    for line in listing.splitlines():
        if line.endswith(">:"):
            function = line.split("<")[1][:-2]
        found |= {(function, name) for name in names if f"<{name}" in line}
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objdump", default="objdump")
    options = parser.parse_args()
    found = variables(options.nm, options.library)
    names = {variable.name for variable in found}
    problems = [f"there is no variable {name}" for name in WRITTEN + READ if name not in names]
    for variable in found:
        if variable.name not in WRITTEN:
            continue
        if variable.start % LINE != 0:
            problems.append(f"{variable.name} does not begin a line")
        for other in found:
            if other is not variable and set(variable.lines()) & set(other.lines()):
                problems.append(f"{variable.name} shares a line with {other.name}")
    births = readers(options.objdump, options.library, BIRTHS)
    problems += [] if births else ["no function reads what births write"]
    problems += [
        f"{function} reads {name}"
        for function, name in sorted(births)
        if function.startswith(tuple(MISSES)) and ".cold" not in function
    ]
    print("\n".join(problems) or f"{len(WRITTEN)} variables lie alone")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
