"""The benchmark programs as cases: which program with which arguments, at full size and at sanity size.

A full-size run makes >= 10 M operations or takes >= 1 s; a sanity run proves that it runs, nothing else. The programs
and their arguments are told in bench/README.md; each ends with the lines that bench/bench.h describes, and its own
finding of whose malloc it called must agree with the witness's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hakmem import native, process
from hakmem.errors import LabError
from hakmem.measure import SameOutput, Sample, Variant, values_of

CLOSING = re.compile(
    r"^allocator (?P<allocator>.+)\n"
    r"peak (?P<peak>\d+) KiB\n"
    r"checksum (?P<checksum>0x[0-9a-f]{16})\n"
    r"Throughput = (?P<throughput>\d+) operations per second, relative time: (?P<seconds>[0-9.]+) s\.$",
    re.MULTILINE,
)
FIGURE = re.compile(r"^figure (?P<name>\S+) (?P<value>[-+0-9.e]+) (?P<unit>\S+)$", re.MULTILINE)
TIMEOUT_S = 300
LONG = "long"
FOUNDING = "founding"  # commands by which allocators have been compared since before hakmem was one
ON_WISH = (LONG, FOUNDING)  # groups of cases that run only when they are asked for
FIXED_BYTES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LONG_TIMEOUT_S = 7200


@dataclass(frozen=True)
class Benchmark:
    """One row of the suite."""

    name: str
    full: str  # program and arguments
    sanity: str
    group: str = "single"
    figures: tuple[str, ...] = ()  # its own figures that a report compares; a record has all of them
    by_wall: bool = False  # it is as long as it takes, also where it waits
    is_timed: bool = False  # it goes on for as long as its arguments say, and does as much as it can


@dataclass(frozen=True)
class BenchCase:
    """A benchmark program with arguments, runnable under any allocator."""

    name: str
    words: tuple[str, ...]
    by_wall: bool = False
    is_timed: bool = False
    same_output: SameOutput = "everywhere"
    timeout_s: int = TIMEOUT_S

    @property
    def command(self) -> tuple[str, ...]:
        return (str(native.program(self.words[0])), *self.words[1:])

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        run = process.run(self.command, variant.allocator, variant.settings, timeout_s=self.timeout_s)
        output = run.stdout.decode(errors="replace")
        closing = CLOSING.search(output)
        if run.status != 0 or closing is None:
            said = run.stderr.decode(errors="replace").strip().splitlines()
            how = process.ending(run.status) + (f": {said[-1]}" if said else " and no closing lines")
            raise LabError(f"{' '.join(self.words)} {how}")
        if not process.is_allocator(closing["allocator"], variant.allocator):
            raise process.TakeoverError(
                f"{self.words[0]} ran on malloc of {closing['allocator']}, not on {variant.name}"
            )
        throughput, seconds = float(closing["throughput"]), float(closing["seconds"])
        figures = list(FIGURE.finditer(output))
        values = values_of(run, throughput * seconds if self.is_timed else 0)
        values |= {figure["name"]: float(figure["value"]) for figure in figures}
        values |= {
            "operations_per_s": throughput,
            "measured_s": seconds,
            "peak_rss_bytes": int(closing["peak"]) * 1024.0,
        }
        return Sample(
            values,
            digest=closing["checksum"],
            full_size=(run.wall_s if self.by_wall else seconds) >= 1 or throughput * seconds >= 10e6,
            units={figure["name"]: figure["unit"] for figure in figures},
        )


REALLOC_SANITY = "bench_realloc 1 33554432 150 0.1 1"
TAIL = (
    "malloc_p50",
    "malloc_p99",
    "malloc_p99.9",
    "malloc_p99.99",
    "free_p50",
    "free_p99",
    "free_p99.9",
    "free_p99.99",
)

BENCHMARKS = (
    Benchmark("mixed 400", "bench_random_mixed 20000000 400 1", "bench_random_mixed 1000000 400 1"),
    Benchmark("mixed 8k", "bench_random_mixed 12000000 8192 1", "bench_random_mixed 1000000 8192 1"),
    Benchmark("mixed 200k", "bench_random_mixed 12000000 200000 1", "bench_random_mixed 1000000 200000 1"),
    Benchmark("bulk 1k", "bench_bulk 1000 10000 1 16 128", "bench_bulk 1000 1000 1 16 128"),
    Benchmark("bulk 100k", "bench_bulk 100000 100 1 16 128", "bench_bulk 100000 5 1 16 128"),
    Benchmark("rev 100k", "bench_bulk 100000 100 1 16 128 lifo", "bench_bulk 100000 5 1 16 128 lifo"),
    Benchmark("bulk 50k L", "bench_bulk 50000 110 1 16 2048", "bench_bulk 50000 4 1 16 2048"),
    Benchmark("hot", "bench_tiny_hot 100000000 64", "bench_tiny_hot 5000000 64"),
    Benchmark("c6 heavy", "bench_c6_heavy 12000000 4096 1", "bench_c6_heavy 200000 1024 1"),
    Benchmark("comprehensive", "bench_comprehensive 300000 1", "bench_comprehensive 20000 1"),
    Benchmark("stability", "bench_stability 2000000 4096 1", "bench_stability 20000 400 1"),
    Benchmark(
        "mid",
        "bench_mid_large 120000 1000 1 2048 32768 1",
        "bench_mid_large 50000 256 1 2048 32768 0.01",
        is_timed=True,
    ),
    Benchmark(
        "large",
        "bench_mid_large 2000 40 1 32768 8388608 1",
        "bench_mid_large 300 8 1 32768 8388608 0.01",
        is_timed=True,
    ),
    Benchmark(
        "realloc untouched",
        "bench_realloc 1 1073741824 150 1 1 untouched",
        REALLOC_SANITY + " untouched",
        is_timed=True,
    ),
    Benchmark(
        "realloc touched", "bench_realloc 1 268435456 150 1 1 touched", REALLOC_SANITY + " touched", is_timed=True
    ),
    Benchmark(
        "realloc vectors",
        "bench_realloc 20000 20000 150 1 1 touched",
        "bench_realloc 500 20000 150 0.1 1 touched",
        is_timed=True,
    ),
    *(
        Benchmark(
            f"larson {threads}",
            f"larson 1 8 1000 5000 100 4141 {threads}",
            f"larson 0.1 8 1000 5000 10 4141 {threads}",
            "threads",
            is_timed=True,
        )
        for threads in (1, 2, 4, 16, 64)
    ),
    Benchmark("remote", "bench_remote 2 1 64", "bench_remote 2 0.1 64", "threads", is_timed=True),
    Benchmark("churn", "bench_thread_churn 10000 2 1000 1", "bench_thread_churn 200 2 1000 1", "threads"),
    Benchmark("latency", "bench_latency 20000000 10000 1 1", "bench_latency 100000 1000 1 1", "tail", TAIL),
    Benchmark("latency 4", "bench_latency 5000000 10000 1 4", "bench_latency 50000 1000 1 3", "tail", TAIL),
    Benchmark(
        "fragmentation",
        "bench_fragment_stress 67108864 40 1 2",
        "bench_fragment_stress 4194304 16 1 0.1",
        "memory",
        ("over_limit_end", "over_limit_idle"),
        by_wall=True,
    ),
    Benchmark(
        "cold heap",
        "bench_cold_heap 1073741824 16 190 1",
        "bench_cold_heap 16777216 16 240 1",
        "memory",
        ("build", "faults"),
    ),
    Benchmark("phases", "bench_phases 40 16777216 1", "bench_phases 22 1048576 1", "memory", ("rss_growth",)),
    Benchmark(
        "idle burst",
        "bench_idle_burst 4 1073741824 95 10 trim",
        "bench_idle_burst 3 16777216 95 0.1 trim",
        "memory",
        ("over_limit_10s", "over_limit_trimmed"),
        by_wall=True,
    ),
    Benchmark(
        "busy burst",
        "bench_idle_burst 4 1073741824 95 2 busy trim",
        "bench_idle_burst 2 16777216 95 0.1 busy trim",
        "memory",
        ("over_limit_trimmed",),
        by_wall=True,
        is_timed=True,
    ),
    Benchmark(
        "snapshot",
        "bench_snapshot 1073741824 250 750 500000 1",
        "bench_snapshot 16777216 250 750 20000 1",
        "memory",
        ("freed_dirty", "freed_rss", "copied"),
        by_wall=True,
    ),
    Benchmark("tight", "bench_tight 167772160 9 1", "bench_tight 4194304 9 1", "memory", ("rss_peak", "rss_end")),
    Benchmark(
        "soak",
        "bench_soak 3 67108864 1 4",
        "bench_soak 0.1 4194304 1 2",
        "memory",
        ("rss_end", "mappings_most"),
        by_wall=True,
        is_timed=True,
    ),
    Benchmark(
        "soak half an hour",
        "bench_soak 1800 67108864 1 4",
        "bench_soak 0.1 4194304 1 2",
        LONG,
        ("rss_drift", "mappings_most"),
        by_wall=True,
        is_timed=True,
    ),
    *(
        Benchmark(
            f"fixed {size}",
            f"bench_random_mixed 12000000 400 1 {size} {size}",
            f"bench_random_mixed 1000000 400 1 {size} {size}",
            FOUNDING,
        )
        for size in FIXED_BYTES
    ),
    *(
        Benchmark(
            f"small larson {threads}",
            f"larson 2 8 128 1024 1 12345 {threads}",
            f"larson 0.1 8 128 1024 1 12345 {threads}",
            FOUNDING,
            is_timed=True,
        )
        for threads in (1, 2, 4, 16)
    ),
)
GROUPS = tuple(dict.fromkeys(benchmark.group for benchmark in BENCHMARKS))


def resolve(names: Iterable[str] = (), size: str = "full") -> list[BenchCase]:
    """Cases by name of benchmark or of group, in the order of the suite; without names, all but those on wish."""
    wanted = [name.strip() for word in names for name in word.split(",")]
    known = {benchmark.name for benchmark in BENCHMARKS} | set(GROUPS)
    for name in wanted:
        if name not in known:
            rows = ", ".join(benchmark.name for benchmark in BENCHMARKS)
            raise LabError(f"no benchmark {name!r}; there are {rows}, and the groups {', '.join(GROUPS)}")
    return [case_of(row, size) for row in BENCHMARKS if is_wanted(row.name, row.group, wanted)]


def is_wanted(name: str, group: str, wanted: list[str]) -> bool:
    """Whether a case was asked for, by its name or its group; without a wish, all are but some groups."""
    return name in wanted or group in wanted if wanted else group not in ON_WISH


def case_of(row: Benchmark, size: str) -> BenchCase:
    words = tuple((row.full if size == "full" else row.sanity).split())
    timeout_s = LONG_TIMEOUT_S if row.group == LONG else TIMEOUT_S
    return BenchCase(row.name, words, row.by_wall, row.is_timed, timeout_s=timeout_s)


def compared_figures() -> list[str]:
    return list(dict.fromkeys(name for row in BENCHMARKS for name in row.figures))


def is_known(name: str) -> bool:
    return any(name in (row.name, row.group) for row in BENCHMARKS)
