"""metadata.py: what hakmem's own structures cost, resident, over a resident heap of 1 GiB.

    metadata.py --lib LIBRARY --program BENCH_METADATA
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HEAP_BYTES = 1 << 30
LIMITS = {("16", "1040"): 0.5, ("16", "16"): 2.0}  # sizes of blocks: percent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    arguments = parser.parse_args()
    failures = 0
    for sizes, limit in LIMITS.items():
        done = subprocess.run([arguments.program, str(HEAP_BYTES), *sizes], capture_output=True, text=True,
                              env={"LD_PRELOAD": str(arguments.lib.resolve())})
        allocator = re.search(r"^allocator (.+)$", done.stdout, re.MULTILINE)
        figure = re.search(r"^figure metadata_of_heap ([0-9.]+) %$", done.stdout, re.MULTILINE)
        if done.returncode or not figure or not allocator or Path(allocator[1]).resolve() != arguments.lib.resolve():
            print(f"{' '.join(sizes)}: FAILED, exit status {done.returncode}\n{done.stdout}{done.stderr}")
            failures += 1
            continue
        percent = float(figure[1])
        failures += percent > limit
        print(f"{'-'.join(sizes)} bytes: {percent} % of the heap, limit {limit} %: {'kept' if percent <= limit else 'BROKEN'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
