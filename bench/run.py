#!/usr/bin/env python3
"""Measures hakmem against mimalloc, jemalloc and tcmalloc: throughput and peak RSS, interleaved, takeover proved.

Owns: the columns (which program with which arguments), the order of runs, the tables and the record. One run of every
column under every allocator makes a round, so that what drifts on the machine drifts for all; the order of allocators
turns from round to round. Figures are medians; a ratio stands with the least and the greatest of the rounds' own.
Figures of different invocations do not compare.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peers
from runner import BenchError, Run, run_program, settings

REPOSITORY = Path(__file__).resolve().parent.parent
GIB = 1 << 30


@dataclass(frozen=True)
class Column:
    name: str
    full: str  # program and arguments: >= 1 s or >= 10 M operations
    quick: str  # proves that it runs, nothing else

    def command(self, programs: Path, quick: bool) -> list[str]:
        words = (self.quick if quick else self.full).split()
        return [str(programs / words[0]), *words[1:]]


SINGLE = (
    Column("mixed 400", "bench_random_mixed 50000000 400 1", "bench_random_mixed 1000000 400 1"),
    Column("mixed 8k", "bench_random_mixed 40000000 8192 1", "bench_random_mixed 1000000 8192 1"),
    Column("mixed 200k", "bench_random_mixed 20000000 200000 1", "bench_random_mixed 1000000 200000 1"),
    Column("bulk 1k", "bench_bulk 1000 60000 1 16 128", "bench_bulk 1000 1000 1 16 128"),
    Column("bulk 100k", "bench_bulk 100000 300 1 16 128", "bench_bulk 100000 5 1 16 128"),
    Column("rev 100k", "bench_bulk 100000 300 1 16 128 lifo", "bench_bulk 100000 5 1 16 128 lifo"),
    Column("bulk 50k L", "bench_bulk 50000 200 1 16 2048", "bench_bulk 50000 4 1 16 2048"),
    Column("hot", "bench_tiny_hot 200000000 64", "bench_tiny_hot 5000000 64"),
)
THREADED = (
    Column("larson 1", "larson 1 8 1000 5000 100 4141 1", "larson 0.1 8 1000 5000 10 4141 1"),
    Column("larson 2", "larson 1 8 1000 5000 100 4141 2", "larson 0.1 8 1000 5000 10 4141 2"),
    Column("larson 4", "larson 1 8 1000 5000 100 4141 4", "larson 0.1 8 1000 5000 10 4141 4"),
    Column("remote", "bench_remote 2 1 64", "bench_remote 2 0.1 64"),
    Column("churn", "bench_thread_churn 10000 2 1000 1", "bench_thread_churn 200 2 1000 1"),
)


@dataclass(frozen=True)
class MetadataBar:
    name: str
    sizes: str
    limit_percent: float


METADATA = (MetadataBar("16-1040 B", "16 1040", 0.5), MetadataBar("16 B", "16 16", 2.0))

Runs = dict[str, dict[str, list[Run]]]  # by column, by allocator, in the order of rounds
Figure = Callable[[Run], float]


# ---- Measuring -------------------------------------------------------------------------------------------------------


class Progress:
    """One line on a terminal, one line per round elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()

    def round(self, number: int, count: int) -> None:
        if not self.terminal:
            print(f"round {number} of {count}", file=sys.stderr, flush=True)

    def run(self, number: int, count: int, what: str) -> None:
        if self.terminal:
            print(f"\r\033[K[{number}/{count}] {what}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def measure(
    columns: Sequence[Column], allocators: Mapping[str, Path | None], programs: Path, rounds: int, quick: bool
) -> Runs:
    runs: Runs = {column.name: {name: [] for name in allocators} for column in columns}
    progress = Progress()
    names = list(allocators)
    number = 0
    for round_number in range(rounds):
        progress.round(round_number + 1, rounds)
        for index, column in enumerate(columns):
            turn = (round_number + index) % len(names)
            for name in names[turn:] + names[:turn]:
                number += 1
                progress.run(number, rounds * len(columns) * len(names), f"{column.name} on {name}")
                run = run_program(column.command(programs, quick), allocators[name])
                if not quick and not run.full_size:
                    raise BenchError(f"{column.name} on {name} is no full-size run: {run.seconds} s")
                runs[column.name][name].append(run)
            if len({run.checksum for by_round in runs[column.name].values() for run in by_round}) != 1:
                raise BenchError(f"{column.name}: checksums differ, so one of the allocators damaged a payload")
    progress.done()
    return runs


# ---- Tables ----------------------------------------------------------------------------------------------------------


def operations(run: Run) -> float:
    return run.operations_per_second / 1e6


def memory(run: Run) -> float:
    return run.peak_rss_bytes / (1 << 20)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


@dataclass(frozen=True)
class Row:
    """One line of a table: what each allocator reached, as medians and round by round."""

    name: str
    medians: dict[str, float]
    rounds: dict[str, list[float]]

    def ratio(self, rival: str) -> float:
        return self.medians["hakmem"] / self.medians[rival]

    def ratio_text(self, rival: str) -> str:
        ratios = [mine / theirs for mine, theirs in zip(self.rounds["hakmem"], self.rounds[rival], strict=True)]
        return f"{self.ratio(rival):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def table_rows(runs: Runs, columns: Sequence[Column], figure: Figure) -> list[Row]:
    """A row per column, and last their geometric mean."""
    rows: list[Row] = []
    for column in columns:
        values = {name: [figure(run) for run in by_round] for name, by_round in runs[column.name].items()}
        rows.append(Row(column.name, {name: statistics.median(some) for name, some in values.items()}, values))
    means = {name: geometric_mean([row.medians[name] for row in rows]) for name in rows[0].medians}
    by_round = {
        name: [geometric_mean(each) for each in zip(*(row.rounds[name] for row in rows), strict=True)] for name in means
    }
    return [*rows, Row("geomean", means, by_round)]


def print_table(title: str, rows: Sequence[Row], rivals: Sequence[str], more_is_better: bool) -> None:
    names = list(rows[0].medians)
    extras = [name for name in names if name != "hakmem" and name not in rivals]
    best = max if more_is_better else min
    lines = [["", *names, "best peer", "hakmem / best", *(f"hakmem / {name}" for name in extras)]]
    for row in rows:
        rival = best(rivals, key=lambda name: row.medians[name])
        figures = [f"{row.medians[name]:.1f}" for name in names]
        lines.append([row.name, *figures, rival, row.ratio_text(rival), *(row.ratio_text(name) for name in extras)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    print(f"\n{title}\n")
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
    ratios = [row.ratio(best(rivals, key=lambda name: row.medians[name])) for row in rows[:-1]]
    print(f"\ngeometric mean of the ratios to each column's own best peer: {geometric_mean(ratios):.3f}")


def bar_ratio(runs: Runs, columns: Sequence[Column], rivals: Sequence[str]) -> float:
    """hakmem's geometric mean of throughput over that of the peer whose own is greatest."""
    mean = table_rows(runs, columns, operations)[-1]
    return mean.medians["hakmem"] / max(mean.medians[name] for name in rivals)


# ---- The record ------------------------------------------------------------------------------------------------------


def read_line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def cpu_model() -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", read_line("/proc/cpuinfo") or "", re.MULTILINE)
    return model[1] if model else platform.machine()


def machine_facts() -> dict[str, Any]:
    frequency = re.search(r"^cpu MHz\s*:\s*([0-9.]+)$", read_line("/proc/cpuinfo") or "", re.MULTILINE)
    memory_kib = re.search(r"^MemTotal:\s+(\d+) kB$", read_line("/proc/meminfo") or "", re.MULTILINE)
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_mhz": float(frequency[1]) if frequency else None,
        "governor": read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": int(memory_kib[1]) * 1024 if memory_kib else None,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "transparent_hugepage": read_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": os.getloadavg(),
    }


def git(*words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(REPOSITORY), *words]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def library_facts(path: Path | None) -> dict[str, str] | None:
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} if path else None


def record(
    options: argparse.Namespace, allocators: Mapping[str, Path | None], facts: Mapping[str, Any], runs: Runs
) -> dict[str, Any]:
    status = git("status", "--porcelain")
    return {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "commit": git("rev-parse", "HEAD"),
        "clean": None if status is None else status == "",
        "settings": settings(),
        "machine": {**facts, "load_at_end": os.getloadavg()},
        "size": "quick" if options.quick else "full",
        "rounds": options.rounds,
        "allocators": {name: library_facts(path) for name, path in allocators.items()},
        "runs": {
            column: {name: [asdict(run) for run in by_round] for name, by_round in by_name.items()}
            for column, by_name in runs.items()
        },
    }


# ---- Metadata --------------------------------------------------------------------------------------------------------


def measure_metadata(allocators: Mapping[str, Path | None], programs: Path, quick: bool) -> bool:
    """Prints resident metadata over resident heap; True when hakmem keeps within its limits."""
    heap_bytes = GIB // 16 if quick else GIB
    kept = True
    for bar in METADATA:
        for name, path in allocators.items():
            run = run_program([str(programs / "bench_metadata"), str(heap_bytes), *bar.sizes.split()], path)
            found = re.search(r"^metadata / heap = ([0-9.]+) %$", run.output, re.MULTILINE)
            how = re.search(r"^told apart by (.+)$", run.output, re.MULTILINE)
            if not found or not how:
                raise BenchError(f"bench_metadata printed no ratio\n{run.output}")
            percent = float(found[1])
            verdict = ""
            if name == "hakmem":
                kept = kept and percent <= bar.limit_percent
                verdict = f"limit {bar.limit_percent} %: {'kept' if percent <= bar.limit_percent else 'BROKEN'}"
            print(f"{bar.name:10} {name:12} metadata / heap {percent:8.4f} %  (by {how[1]})  {verdict}".rstrip())
    return kept


# ---- Command line ----------------------------------------------------------------------------------------------------


def parse_extras(words: Sequence[str]) -> dict[str, Path | None]:
    extras: dict[str, Path | None] = {}
    taken = {"hakmem", *(peer.name for peer in peers.PEERS)}
    for word in (part for some in words for part in some.split(",") if part):
        name, equals, path = word.partition("=")
        if word == "glibc":
            extras["glibc"] = None
        elif name in taken:
            raise BenchError(f"{name} is measured anyway; give {path or 'the other'} another name")
        elif equals and Path(path).is_file():
            extras[name] = Path(path).resolve()
        else:
            raise BenchError(f"--with takes glibc and NAME=PATH of a library that exists, not {word!r}")
    return extras


def pick_columns(known: Sequence[Column], wanted: str | None) -> list[Column]:
    if wanted is None:
        return list(known)
    names = [name.strip() for name in wanted.split(",")]
    unknown = [name for name in names if name not in {column.name for column in known}]
    if unknown:
        raise BenchError(f"no column {unknown[0]!r}; there are: {', '.join(column.name for column in known)}")
    return [column for column in known if column.name in names]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each column and allocator (5)")
    parser.add_argument("--quick", action="store_true", help="short runs: they prove that it runs, nothing else")
    parser.add_argument("--with", dest="extras", action="append", default=[], metavar="NAMES",
                        help="more allocators: glibc,NAME=PATH,...")
    parser.add_argument("--threads", action="store_true", help="also the columns with threads, in tables of their own")
    parser.add_argument("--columns", metavar="NAMES", help="only these, separated by commas")
    parser.add_argument("--metadata", action="store_true", help="only resident metadata over resident heap, 1 GiB each")
    parser.add_argument("--at-least", type=float, metavar="RATIO", help="exit with 1 if the geometric mean is below")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record: raw values, commands, machine")
    parser.add_argument("--hakmem", type=Path, default=REPOSITORY / "build/release/libhakmem.so", metavar="PATH")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bench", metavar="FOLDER")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def run(options: argparse.Namespace) -> int:
    for needed in (options.hakmem, options.programs / "bench_random_mixed"):
        if not needed.is_file():
            raise BenchError(f"{needed} is not there: ./dev build release")
    extras = parse_extras(options.extras)
    own: dict[str, Path | None] = {"hakmem": options.hakmem.resolve()}
    programs = options.programs.resolve()
    if options.metadata:
        return 0 if measure_metadata({**own, **extras}, programs, options.quick) else 1

    peer_libraries = peers.ensure()
    rivals = list(peer_libraries)
    allocators = {**own, **peer_libraries, **extras}
    columns = pick_columns([*SINGLE, *(THREADED if options.threads else ())], options.columns)
    facts = machine_facts()
    runs = measure(columns, allocators, programs, options.rounds, options.quick)
    if options.json:
        text = json.dumps(record(options, allocators, facts, runs), indent=1) + "\n"
        options.json.write_text(text.replace(f"{REPOSITORY}/", ""))  # no paths of this machine

    size = "quick runs, which prove nothing" if options.quick else "full-size runs"
    print(f"{facts['cpu']}, {facts['cores']} cores, kernel {facts['kernel']}, load {facts['load'][0]:.2f}")
    print(f"medians of {options.rounds} interleaved rounds, {size}; takeover proved in each of {sum_runs(runs)} runs")
    groups = [("", [column for column in columns if column in SINGLE])]
    groups.append((" with threads", [column for column in columns if column in THREADED]))
    for suffix, group in groups:
        if group:
            print_table(f"Throughput{suffix}, M operations/s", table_rows(runs, group, operations), rivals, True)
            print_table(f"Peak RSS{suffix}, MiB", table_rows(runs, group, memory), rivals, False)
    if options.at_least is not None:
        ratio = bar_ratio(runs, [column for column in columns if column in SINGLE] or columns, rivals)
        print(f"\nhakmem / best peer {ratio:.3f}, wanted {options.at_least:.3f}")
        return 0 if ratio >= options.at_least else 1
    return 0


def sum_runs(runs: Runs) -> int:
    return sum(len(by_round) for by_name in runs.values() for by_round in by_name.values())


def main() -> int:
    try:
        return run(parse_options())
    except (BenchError, peers.MissingPeers) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
