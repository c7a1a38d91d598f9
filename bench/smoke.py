#!/usr/bin/env python3
"""Smoke test of a benchmark program.

    smoke.py [--preload LIBRARY]... -- PROGRAM ARGUMENTS...     computes the same under every allocator
    smoke.py --usage PROGRAM...                                 tells its usage and exits with 2 on wrong arguments

The program is run under the C library's allocator and under each LIBRARY. Its closing lines (bench.h) must be there,
name the very file that was asked for as the one that malloc and free come from, and agree on the checksum: LD_PRELOAD
with a wrong path runs on with the C library's allocator and exits 0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

CLOSING = re.compile(
    r"(?:figure \S+ -?\d+(?:\.\d+)? (?:bytes|s|ns|ops/s|faults|count|%|x)\n)*"
    r"figure tables \d+ bytes\n"
    r"allocator (?P<allocator>.+)\n"
    r"peak [1-9]\d* KiB\n"
    r"checksum (?P<checksum>0x[0-9a-f]{16})\n"
    r"Throughput = [1-9]\d* operations per second, relative time: [0-9.]+ s\.\n"
)
TIMEOUT_S = 50
C_LIBRARY = re.compile(r"libc\.so\.6|libc-2\.\d+\.so|libc\.so|ld-musl-.*")


class Failure(Exception):
    pass


def run(command: list[str], preload: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload.resolve())
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def checksum(command: list[str], preload: Path | None) -> str:
    asked_for = preload or "the C library"
    done = run(command, preload)
    if done.returncode != 0 or done.stderr:
        raise Failure(f"exit status {done.returncode} under {asked_for}\n{done.stdout}{done.stderr}")
    closing = CLOSING.fullmatch(done.stdout)
    if closing is None:
        raise Failure(f"not the lines that bench.h tells of:\n{done.stdout}")
    found = Path(closing["allocator"])
    if found.resolve() != preload.resolve() if preload is not None else not C_LIBRARY.fullmatch(found.name):
        raise Failure(f"malloc came from {found}, not from {asked_for}")
    print(f"{closing['checksum']} {found}")
    return closing["checksum"]


def refused(command: list[str], expected: str) -> str:
    """What it says on standard error."""
    done = run(command)
    if done.returncode != 2 or done.stdout or not re.fullmatch(expected, done.stderr):
        raise Failure(f"{' '.join(command)}: exit status {done.returncode}, {done.stdout!r}, {done.stderr!r}")
    return done.stderr


def check_usage(program: str) -> None:
    usage = f"usage: {Path(program).name}(?: [A-Z_]+)+[^\n]*\n"
    refused([program, *["1"] * 20], usage)
    arguments = re.findall(" [A-Z_]+", refused([program], usage).split("[")[0])
    refused([program, *["-1"] * len(arguments)], f"bench: '?-1'?[ :][^\n]+\n|{usage}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preload", metavar="LIBRARY", type=Path, action="append", default=[])
    parser.add_argument("--usage", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        if options.usage:
            for program in options.command:
                check_usage(program)
        elif len({checksum(options.command, preload) for preload in [None, *options.preload]}) != 1:
            raise Failure("different checksums")
    except (Failure, OSError, subprocess.TimeoutExpired) as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
