"""Checks that a libhakmem.so exports the symbols of symbols.txt and no others, that hakmem.h declares no function that
the list lacks, that the page about the interface names them all, and that the library uses none of the C library's
locks, and writes no environment.

    symbols.py LIBRARY SYMBOLS HEADER PAGE [--nm NM]

Owns nothing; reads the dynamic symbol table through nm. Exit code 0 when they agree, else 1 with the difference.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path


UNWANTED = re.compile(r"pthread_(mutex|rwlock|spin|cond|barrier)_\w+|pthread_once|(mtx|cnd)_\w+|call_once|sem_\w*wait"
                      r"|flock(file)?|_ZNSt5mutex\w+|__cxa_guard_acquire|(un)?setenv|putenv|clearenv")


def dynamic(nm: str, library: Path, which: str) -> set[str]:
    """Names of the dynamic symbols, --defined-only or --undefined-only, without symbol versions."""
    command = [nm, "-D", which, str(library)]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    names: set[str] = set()
    for line in table.stdout.splitlines():
        *_, kind, name = line.split()
        if kind != "A":  # the names of symbol versions
            names.add(name.split("@")[0])
    return names


def listed(symbols: Path) -> list[str]:
    lines = (line.strip() for line in symbols.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def declared(header: Path) -> set[str]:
    """Names of the functions that the header declares with HAK_API."""
    return set(re.findall(r"^HAK_API [^;(]*?\b(hak_\w+)\(", header.read_text(encoding="utf-8"), re.MULTILINE))


def told(page: Path) -> set[str]:
    """Names in backquotes, several of which may stand in one cell or row."""
    return set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("symbols", type=Path)
    parser.add_argument("header", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()

    wanted = listed(options.symbols)
    names = set(wanted)
    found = dynamic(options.nm, options.library, "--defined-only")
    used = dynamic(options.nm, options.library, "--undefined-only")
    public = declared(options.header)
    page = told(options.page)
    complaints = (
        ([] if "pthread_create" in used else ["what the library uses can't be told"])
        + [f"used, and must not be: {name}" for name in sorted(used) if UNWANTED.fullmatch(name)]
        + [f"listed twice: {name}" for name in sorted(names) if wanted.count(name) > 1]
        + [f"not exported: {name}" for name in sorted(names - found)]
        + [f"exported, but not in the list: {name}" for name in sorted(found - names)]
        + [f"declared in {options.header.name}, but not in the list: {name}" for name in sorted(public - names)]
        + [f"in the list, but not declared in {options.header.name}: {name}"
           for name in sorted(n for n in names if n.startswith("hak_") and n not in public)]
        + [f"not in {options.page.name}: {name}" for name in sorted(n for n in names - page if "_Z" not in n)]
        + [f"in {options.page.name}, but not exported: {name}"
           for name in sorted(n for n in page - names if n.startswith("hak_"))]
    )
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
