"""All cases there are by name: the benchmark programs, the shipped traces, the real programs.

Group names stand for all of theirs: those of the suite, `traces` and `programs`. A shipped trace NAME is the case
`replay NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hakmem import native, programs, replays, suite
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import CEILING, Case, Variant

TRACES = "traces"
REPLAY = "replay "


def names() -> list[str]:
    """Of all cases, in their order."""
    benchmarks = [row.name for row in suite.BENCHMARKS]
    traces = [REPLAY + name for name in replays.shipped()]
    return benchmarks + traces + [program.name for program in programs.PROGRAMS]


def choose(wanted: Iterable[str] = (), size: str = "full") -> tuple[list[Case], list[str]]:
    """Cases by name or group, all but the long ones when none is given; and a line for each program that is missing."""
    chosen = [name.strip() for word in wanted for name in word.split(",")]
    known, groups = names(), [*suite.GROUPS, TRACES, programs.GROUP]
    for name in chosen:
        if name not in known and name not in groups:
            raise LabError(f"no case {name!r}; there are {', '.join(known)}, and the groups {', '.join(groups)}")

    def is_wanted(name: str, group: str) -> bool:
        return suite.is_wanted(name, group, chosen)

    benchmarks = [row.name for row in suite.BENCHMARKS if is_wanted(row.name, row.group)]
    traces = [name for name in replays.shipped() if is_wanted(REPLAY + name, TRACES)]
    real, absent = programs.cases(row for row in programs.PROGRAMS if is_wanted(row.name, row.group))
    cases: list[Case] = list(suite.resolve(benchmarks, size)) if benchmarks else []
    cases += [replace(case, name=REPLAY + case.name) for case in replays.cases(traces, size)]
    cases += real
    missing = [f"{program.name}, Debian's package {program.package} is not installed" for program in absent]
    if not cases:
        raise LabError(f"nothing to run: {missing[0]}")
    return cases, missing


def listing() -> list[list[str]]:
    """Case, group and command at full size, of all."""
    rows = [[row.name, row.group, row.full] for row in suite.BENCHMARKS]
    rows += [[REPLAY + name, TRACES, f"bench_replay {path.name}"] for name, path in replays.shipped().items()]
    return rows + [[program.name, program.group, " ".join(program.command)] for program in programs.PROGRAMS]


def usual() -> list[str]:
    """Names of the cases that run where none is asked for, as far as they are installed."""
    return [name for name, group, _ in listing() if suite.is_wanted(name, group, [])]


def ceiling() -> Variant:
    """BenchFast: an allocator that does almost nothing, and can't run a real program."""
    return Variant(CEILING, Allocator(CEILING, native.program("libbenchfast.so")))
