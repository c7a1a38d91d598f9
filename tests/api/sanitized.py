"""Runs a program that a compiler has built with a sanitizer, with hakmem preloaded: it works, or the sanitizer says in
its own words why it doesn't, and no signal ends it.

    sanitized.py LIBRARY SOURCE FOLDER SANITIZER

SOURCE prints "ok". Built in FOLDER by each of gcc and clang that has the sanitizer; without one the test is skipped.
Told not to look whose malloc comes first, AddressSanitizer lets the program run on hakmem.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from preloads import expect_hakmem

EXIT_SKIPPED = 77
BY_NAME = {"address": "ASan", "thread": "ThreadSanitizer", "leak": "LeakSanitizer", "undefined": "UndefinedBehavior"}
TOLD = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}


def run(program: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], capture_output=True, text=True, timeout=600, env=os.environ | environment)


def check(program: Path, library: Path, sanitizer: str) -> None:
    preload = {"LD_PRELOAD": str(library)}
    done = run(program, preload)
    works = done.returncode == 0 and done.stdout == "ok\n"
    speaks = done.returncode > 0 and BY_NAME[sanitizer] in done.stderr
    if sanitizer == "address" and (works or speaks):
        done = run(program, preload | TOLD)
        works = done.returncode == 0 and done.stdout == "ok\n"
        speaks = False
    if not (works or speaks):
        sys.exit(f"{program} ended with {done.returncode}: {done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sanitizer", choices=BY_NAME)
    options = parser.parse_args()
    expect_hakmem(options.library)
    count = 0
    for compiler in filter(shutil.which, ("gcc", "clang")):
        program = options.folder / f"sanitized_{options.sanitizer}_{compiler}"
        command = [compiler, "-g", "-O1", f"-fsanitize={options.sanitizer}", options.source, "-o", program]
        if subprocess.run(command, capture_output=True).returncode != 0 or run(program, TOLD).returncode != 0:
            continue
        check(program, options.library, options.sanitizer)
        count += 1
    if count == 0:
        print("skipped: no compiler has the sanitizer", file=sys.stderr)
        return EXIT_SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
