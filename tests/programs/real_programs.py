"""real_programs.py: one program of the laboratory's table on glibc and on hakmem; outputs equal, takeover proved.

    real_programs.py --lib LIBRARY NAME

Exit status 77, "skipped", where the program isn't installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from on_hakmem import GLIBC, SKIPPED, LabError, hakmem, programs
from hakmem import measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("name")
    arguments = parser.parse_args()
    try:
        program = programs.by_name(arguments.name)
        cases, missing = programs.cases([program])
        if missing:
            print(f"skipped: {program.name} is not installed (Debian's package {program.package})")
            return SKIPPED
        done = measure.measure(cases, measure.variants([GLIBC, hakmem(arguments.lib)]), rounds=1, warmup=0)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    for failure in done.failures:
        print(f"FAILED on {failure.variant}: {failure.reason}")
    for variant, samples in done.samples[program.name].items():
        print(f"{variant}: {samples[0].digest if samples else 'failed'}")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
