"""Memory goes back, whoever the program is: bursts of every kind and size, one or several in a row, freed by one
thread or several, kept in part or not at all; in a forked child, in one that the system call has made, in a process
that was stopped, whose memory is locked, or that asks for huge pages. Ten seconds after its last call such a program
has what its live blocks' pages take, and little more.

On a busy machine hakmem's thread may have to wait for its turn, so who has more is looked at again, for two minutes.

    bursts.py --lib LIBRARY --program burst [--large] [--emulator 'WORD...']

An emulator of processors is slow, and doesn't know all that fork and madvise do: a part is run there, of 32 MiB each.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

REST_S = 10
STOPPED_S = 12
PLACES = ("child", "cloned", "copied", "stopped", "locked", "huge")  # as burst.c says; huge: HAKMEM_THP=on
KINDS = ("small", "medium", "runs", "mappings", "mixed")
# Several threads have hakmem's thread, which gives back while they sleep; one has it if there are several bursts.
THREADS = (0, 4)
TIMES = 4  # in a row: what was used again stays for the next one
KEPT = (0, 64)
MOST_SHARE, MOST_KIB = 1.10, 1024
THREAD_KIB = 192  # a sleeping thread keeps a block of each size that it has used
TABLES_SHARE = 256  # of bursts above 128 MiB: records of units stay
LOCKED_KIB = 16 * 1024  # the kernel brings in all of a new mapping, also what no block has used yet
ALONE_KIB = 16 * 1024  # that may stay where no thread of hakmem's can begin
LAST_SLABS_KIB = 768  # of one burst in one thread: the last slab of each class stays, and a medium one has many pages;
# a copy only frees what its parent has used
EMULATOR_KIB = 8 * 1024  # it keeps what it has translated, its own stacks, and a record of each page that was mapped
HOLES_SHARE = 512  # of such a burst above 128 MiB: its last calls don't come to all pages between live blocks


@dataclass(frozen=True)
class Row:
    kind: str
    mib: int
    threads: int
    times: int
    kept: int
    background: str = "auto"
    place: str = ""

    def start(self, program: Path, library: Path, emulator: list[str]) -> subprocess.Popen[str] | None:
        """Returns when all is freed: then it sleeps. None where it may not lock its memory."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
        words = [str(program), self.kind, str(self.mib), str(self.threads), str(self.times), str(self.kept), str(REST_S)]
        environment["HAKMEM_BACKGROUND"] = self.background
        if emulator:
            words = [*emulator, "-E", f"LD_PRELOAD={library}", *words]
        else:
            environment["LD_PRELOAD"] = str(library)
        if self.place == "huge":
            environment["HAKMEM_THP"] = "on"
        elif self.place:
            words.append(self.place)
        child = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        first = child.stderr.readline()
        if self.place == "stopped":
            threading.Timer(STOPPED_S, child.send_signal, [signal.SIGCONT]).start()
        if first not in ("freed\n", "refused\n"):
            child.kill()
            sys.exit(f"{self}: {first}{child.communicate()[1]}")
        return None if first == "refused\n" else child

    def verdict(self, child: subprocess.Popen[str], beside_kib: int) -> str | None:
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
                alone = ALONE_KIB if self.background == "0" else 0
                locked = LOCKED_KIB if self.place == "locked" else 0
                is_single = self.threads == 0 and (self.times == 1 and self.kind == "medium" or self.place == "copied")
                holes = self.mib * 1024 / HOLES_SHARE if self.mib > 128 else 0
                slabs = LAST_SLABS_KIB + holes if is_single else 0
                threads = self.threads + (self.place == "cloned")  # whose own thread nobody drains while it sleeps
                most = MOST_SHARE * limit + MOST_KIB + THREAD_KIB * threads + tables + alone + locked + slabs + beside_kib
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
    parser.add_argument("--emulator", type=shlex.split, default=[])
    options = parser.parse_args()
    sizes = (512, 1024) if options.large else (4, 32, 128)
    rows = [Row(kind, mib, threads, 1, kept) for kind in KINDS for mib in sizes for threads in THREADS for kept in KEPT]
    again = [row for row in rows if row.mib == sizes[0] or (row.mib == sizes[1] and not options.large)]
    rows += [replace(row, times=TIMES) for row in again]
    rows += [replace(row, times=TIMES, background="0") for row in again if row.threads == 0]
    if not options.large:
        rows += [Row(kind, 32, 0, times, 64, place=place) for place in PLACES for kind in KINDS for times in (1, TIMES)]
    if options.emulator:
        rows = [row for row in rows if row.mib == 32 and row.place == "" and row.background != "0"]
    sleeping = [(row, row.start(options.program, options.lib, options.emulator)) for row in rows]
    beside_kib = EMULATOR_KIB if options.emulator else 0
    wrong = [why for row, child in sleeping if child is not None and (why := row.verdict(child, beside_kib)) is not None]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{sum(child is not None for _, child in sleeping)} of {len(rows)} bursts")


if __name__ == "__main__":
    main()
