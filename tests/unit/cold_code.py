"""Checks where code lies in a release libhakmem.so: what programs rarely do is in a section of its own, the last one with
code, and what all of them do is not. So a process doesn't have pages of code that it doesn't execute.

    cold_code.py LIBRARY [--nm NM] [--objdump OBJDUMP]

Exit code 0 when all holds, 1 with the findings, 77 where the compiler has made no such section.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
SECTION = ".text_rarely"

# Called in every program: before main, at misses, when memory is taken and given up.
OFTEN = ("before_main", "read_settings", "hak_process_initialize", "alloc_missed", "hak_front_alloc_miss", "refill",
         "free_any", "give_heap", "hak_pool_take", "hak_pool_put", "hak_pool_retire", "find_slab", "hak_slab_take",
         "hak_heap_grow_bin", "hak_region_acquire", "hak_region_grow", "hak_background_start", "hak_large_alloc",
         "on_thread_exit", "hak_decay_after_release")  # fmt: skip
# Statistics, profiles, what is asked from outside, the controller, crashes, children.
RARELY = ("hak_snapshot_write_text", "hak_snapshot_write_json", "hak_snapshot_write_metrics", "hak_profile_write_sites",
          "hak_profile_record", "hak_report_write_json", "hak_policy_parse", "hak_address_find", "hak_python_next",
          "rule_in_description", "report", "control", "begin_match", "tell_stats", "serve", "in_child",
          "recover_unit", "hak_guard_alloc", "hak_misuse")  # fmt: skip
LEAST_OFTEN = len(OFTEN) // 2  # the others have become part of their callers


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def code_sections(headers: str) -> dict[str, range]:
    """Sections with code, in the order of their addresses."""
    found = re.findall(r"^\s*\d+ (\S+)\s+([0-9a-f]+)\s+([0-9a-f]+) [^\n]*\n[^\n]*\bCODE\b", headers, re.MULTILINE)
    sections = {name: range(int(start, 16), int(start, 16) + int(size, 16)) for name, size, start in found}
    return dict(sorted(sections.items(), key=lambda item: item[1].start))


def places(symbols: str) -> dict[str, list[int]]:
    """Addresses of functions, and of copies that the compiler has made of them. What it has cut off is none of them."""
    addresses: dict[str, list[int]] = {}
    for line in symbols.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in "tT" and ".cold" not in words[2]:
            addresses.setdefault(words[2].split(".")[0], []).append(int(words[0], 16))
    return addresses


def findings(sections: dict[str, range], addresses: dict[str, list[int]]) -> list[str]:
    rarely = sections[SECTION]
    found = [f"{name} is in {SECTION}" for name in OFTEN if any(at in rarely for at in addresses.get(name, ()))]
    found += [f"{name} isn't in {SECTION}" for name in RARELY if not any(at in rarely for at in addresses.get(name, ()))]
    if sum(name in addresses for name in OFTEN) < LEAST_OFTEN:
        found.append(f"of {OFTEN} the library has less than {LEAST_OFTEN}")
    behind = [name for name, place in sections.items() if place.start > rarely.start and name != ".fini"]
    return found + [f"{name} lies behind {SECTION}" for name in behind]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--objdump", default="objdump")
    options = parser.parse_args()
    dump = run(options.objdump, "-s", "-j", ".comment", str(options.library))
    if "clang" in "".join(line[-16:] for line in dump.splitlines()):
        print("compiled by clang, which can't tell what is the library's alone: skipped")
        return SKIPPED
    sections = code_sections(run(options.objdump, "-h", str(options.library)))
    if SECTION not in sections:
        print(f"no section {SECTION}")
        return 1
    print(*(f"{name}: {len(place)} bytes" for name, place in sections.items()), sep="\n")
    found = findings(sections, places(run(options.nm, str(options.library))))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
