"""Reports to test with: made up, seeded, of the sizes that commands make and of the ones that break layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hakmem import statistics
from hakmem.report.model import Case, Comparison, Course, Entry, Line, Report, Section, Share, Shares, Table

NAMES = (
    "glibc", "hakmem", "mimalloc", "jemalloc", "tcmalloc", "snmalloc", "rpmalloc", "hardened_malloc", "scudo",
    "musl mallocng", "hakmem HAKMEM_PROFILE=balanced", "mine=/home/somebody/build/libmine.so.1.0",
)  # fmt: skip
MACHINE = {"machine": "Some CPU, 2 cores", "load": "load 0.50 before, 0.60 after"}


def values(seed: int, centre: float, rounds: int, noise: float = 0.02) -> tuple[float, ...]:
    drift = np.linspace(0, 0.1, rounds)
    return tuple(centre * np.exp(drift + np.random.default_rng(seed).normal(0, noise, rounds)))


def entry(name: str, own: tuple[float, ...], base: tuple[float, ...], less_is_better: bool) -> Entry:
    if name == NAMES[0]:
        return Entry(name, own)
    ratio = statistics.ratio(own, base)
    return Entry(name, own, ratio, statistics.verdict(ratio, less_is_better))


def comparison(
    allocators: int = 4,
    cases: int = 3,
    rounds: int = 10,
    *,
    title: str = "wall time",
    unit: str = "s",
    centre: float = 0.8,
    noise: float = 0.02,
    less_is_better: bool = True,
) -> Comparison:
    """Every allocator but the first two differs from the first by up to 60 %."""
    factors = [1.0, 1.0, *np.exp(np.random.default_rng(1).uniform(-0.5, 0.5, len(NAMES)))][:allocators]
    made: list[Case] = []
    pairs: dict[str, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]]
    pairs = {name: {} for name in NAMES[1:allocators]}
    for case in range(cases):
        own = {
            name: values(100 * case + number, centre * factor * (1 + case), rounds, noise)
            for number, (name, factor) in enumerate(zip(NAMES, factors, strict=False))
        }
        base = own[NAMES[0]]
        made.append(Case(f"case {case}", tuple(entry(name, own[name], base, less_is_better) for name in own)))
        for name in pairs:
            pairs[name][f"case {case}"] = (own[name], base)
    means = []
    for name, of_name in pairs.items():
        ratio = statistics.geometric_mean_ratio(of_name)
        means.append(Entry(name, (), ratio, statistics.verdict(ratio, less_is_better)))
    mean = Case("geometric mean", tuple(means)) if cases > 1 and means else None
    return Comparison(title, unit, NAMES[0], tuple(made), less_is_better, mean, notes=("A note on this figure.",))


def memory(**changes: Any) -> Comparison:
    return comparison(**{"title": "peak RSS", "unit": "B", "centre": 5e7, "noise": 0.0, **changes})


def course() -> Course:
    times = tuple(float(time) for time in range(300))
    lines = tuple(
        Line(name, times, tuple(1e8 * np.exp(-(((np.array(times) - 100) / 50) ** 2)) + 2e6 * number))
        for number, name in enumerate(NAMES[:4])
    )
    return Course("RSS", "B", lines, notes=("Sampled every second.",))


def report(*sections: Section, **changes: object) -> Report:
    plain: dict[str, object] = {
        "title": "python3 script.py",
        "command": "hakmem compare -n 10 -- python3 script.py",
        "sections": sections,
        "summary": ("hakmem against glibc, wall time: no difference",),
        "failures": ("case 2 on tcmalloc: killed by signal 11",),
        "notes": ("Not every run printed the same.",),
        "date": "2026-01-02 03:04 UTC",
        "machine": MACHINE,
        "records": ("2026-01-02-sample",),
    }
    return Report(**{**plain, **changes})  # type: ignore[arg-type]


SHARES = Shares(
    "resident memory",
    "B",
    1e8,
    (
        Share("live blocks", 6.2e7, 0, (("in slabs", 5e7), ("page runs", 1.2e7))),
        Share("stacks", 3.9e7, 1),
        Share("unknown", -1e6, 2),
    ),
    ("The process went on while it was looked at.",),
)

EFFECTS = Table("effects", ("switch", "factor"), (("K1", "1.035"), ("K1 with K2", "0.844")), ("Corrected for 3.",))

REPORTS = {
    "suite": report(comparison(4, 5), memory(cases=5)),
    "command": report(comparison(4, 1), memory(cases=1)),
    "pair": report(comparison(2, 4)),
    "everything": report(comparison(12, 30)),
    "one round": report(comparison(3, 2, rounds=1)),
    "one allocator": report(comparison(1, 1)),
    "one value": report(comparison(1, 1, rounds=1, noise=0.0)),
    "equal values": report(memory(allocators=2, cases=1, rounds=6)),
    "courses": report(course(), Course("knob", "", (Line("threshold", (0.0,), (7.0,)),), "step", ""), EFFECTS),
    "shares": report(SHARES, EFFECTS),
    "nothing": report(Course("RSS", "B", (Line("glibc", (), ()),)), Table("empty", ("a",), ())),
}
