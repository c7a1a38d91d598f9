"""Memory goes back, whoever the program is: bursts of every kind and size, freed by one thread or several, kept in part
or not at all. Ten seconds after its last call such a program has what its live blocks' pages take, and little more.
On a busy machine hakmem's thread may have to wait for its turn, so who has more is looked at again, for two minutes.

    bursts.py --lib LIBRARY --program burst [--large]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REST_S = 10
KINDS = ("small", "runs", "mappings", "mixed")
# Several threads have hakmem's thread, which gives back while they sleep; one thread gives back in its own calls.
THREADS = (0, 4)
KEPT = (0, 64)
MOST_SHARE, MOST_KIB = 1.10, 1024
THREAD_KIB = 192  # a sleeping thread keeps a block of each size that it has used
TABLES_SHARE = 256  # of bursts above 128 MiB: records of units stay


@dataclass(frozen=True)
class Row:
    kind: str
    mib: int
    threads: int
    kept: int

    def start(self, program: Path, library: Path) -> subprocess.Popen[str]:
        """Returns when all is freed: then it sleeps."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
        words = [str(program), self.kind, str(self.mib), str(self.threads), str(self.kept), str(REST_S)]
        child = subprocess.Popen(words, env={**environment, "LD_PRELOAD": str(library)}, stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        first = child.stderr.readline()
        if first != "freed\n":
            child.kill()
            sys.exit(f"{self}: {first}{child.communicate()[1]}")
        return child

    def verdict(self, child: subprocess.Popen[str]) -> str | None:
        """What is wrong, if anything is. The program says what it has each REST_S, until it is ended."""
        found = f"{self}: it has said nothing"
        with child:
            assert child.stderr is not None
            for line in child.stderr:
                words = line.split()
                if words[0::2] != ["resident", "limit"]:
                    return f"{self}: {line}"
                resident, limit = int(words[1]), int(words[3])
                tables = self.mib * 1024 / TABLES_SHARE if self.mib > 128 else 0
                most = MOST_SHARE * limit + MOST_KIB + THREAD_KIB * self.threads + tables
                found = f"{self}: {resident} KiB resident, {limit} KiB in use, {most:.0f} KiB allowed"
                if resident <= most:
                    child.kill()
                    return None
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    sizes = (512, 1024) if options.large else (4, 32, 128)
    rows = [Row(kind, mib, threads, kept) for kind in KINDS for mib in sizes for threads in THREADS for kept in KEPT]
    sleeping = [(row, row.start(options.program, options.lib)) for row in rows]
    wrong = [why for row, child in sleeping if (why := row.verdict(child)) is not None]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(rows)} bursts")


if __name__ == "__main__":
    main()
