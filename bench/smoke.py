#!/usr/bin/env python3
"""Smoke test of a benchmark program: it runs, and computes the same under every allocator.

    smoke.py [--preload LIBRARY]... -- PROGRAM ARGUMENTS...

Runs the program under the C library's allocator and under each LIBRARY, with takeover proved, and compares checksums,
which depend on the arguments only. Exits 0 when they are equal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runner import BenchError, run_program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preload", metavar="LIBRARY", type=Path, action="append", default=[])
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        runs = [run_program(options.command, preload, timeout_seconds=30) for preload in [None, *options.preload]]
    except BenchError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    for run in runs:
        print(f"{run.checksum} {run.allocator}")
    return 0 if len({run.checksum for run in runs}) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
