"""Sweep: the best fixed setting of the knobs for a program, and how much there is to gain over the default.

In two stages, because most settings change nothing. Every knob is set to each of some values, one knob at a time, and
all knobs to random ones together, with few runs of each: that says which are worth a closer look, and no more. These,
the default and whatever else is asked for (the controller, a policy) then run in turns, as often as an interval needs.
So the best of the second stage is not the best by luck: what it shows was not seen when it was chosen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hakmem import ab, behaviours, comparison, statistics, words
from hakmem.allocators import hakmem
from hakmem.behaviours import BehaviourCase
from hakmem.ledger import Record
from hakmem.measure import Case, Measurement, Variant
from hakmem.report.model import Report
from hakmem.settings import Knob

DEFAULT = "default"
FIXED = "HAKMEM_ACE_ENABLED"
UNRELATED = {"metrics_ms"}
STEPS = (1 / 4, 4, 16)  # as the controller's arms
MODE_MOST = 16  # a knob with so few values has them all
BY_TIME, COMBINED, BY_MEMORY = 3, 1, 2  # finalists: of single knobs, of random settings, of all
RANDOM = "random "
TOLERATED = 1.02  # time of a finalist that saves memory, as a ratio to the default's
TIMES = ("cost_ns", "cpu_s")
MEMORIES = ("mean_rss_bytes", "peak_rss_bytes")


# ---- What is tried ---------------------------------------------------------------------------------------------------


def arms(knob: Knob) -> list[int]:
    """Values other than the default, within the bounds, which are among them."""
    if knob.highest - knob.lowest < MODE_MOST:
        return [value for value in range(knob.lowest, knob.highest + 1) if value != knob.default]
    inner = {int(knob.default * step) for step in STEPS}
    return sorted(
        {value for value in inner if knob.lowest <= value <= knob.highest}
        | {knob.lowest, knob.highest} - {knob.default}
    )


def fixed(name: str, values: Mapping[str, int]) -> Variant:
    """The controller is off: what is set stays so."""
    settings = {FIXED: "0"}
    if values:
        settings["HAKMEM_KNOBS"] = ":".join(f"{knob}={value}" for knob, value in values.items())
    return Variant(name, hakmem(), settings)


def single(knobs: Sequence[Knob]) -> list[Variant]:
    return [
        fixed(f"{knob.name}={value}", {knob.name: value})
        for knob in knobs
        if knob.name not in UNRELATED
        for value in arms(knob)
    ]


def combined(knobs: Sequence[Knob], count: int, seed: int) -> list[Variant]:
    """All knobs at random, each at its default or at one of its arms."""
    source = random.Random(seed)
    made: list[Variant] = []
    for number in range(1, count + 1):
        drawn = {knob.name: source.choice([knob.default, *arms(knob)]) for knob in knobs if knob.name not in UNRELATED}
        made.append(fixed(f"{RANDOM}{number}", drawn))
    return made


def cases(what: Sequence[str], seconds: float = behaviours.SECONDS) -> list[Case]:
    """After the word `behaviour`, behaviours of bench_switching with commas between; else what `hakmem ab` takes."""
    if tuple(what[:1]) == ("behaviour",):
        return [BehaviourCase(name.strip(), seconds) for name in " ".join(what[1:]).split(",")]
    return ab.cases(what, sanity=False)


def shortened(case: Case) -> Case:
    """For a glance at very many settings."""
    return replace(case, seconds=case.seconds / 4) if isinstance(case, BehaviourCase) else case


# ---- Who comes into the second stage ---------------------------------------------------------------------------------


def _ratio(done: Measurement, case: str, variant: str, metrics: Sequence[str]) -> float | None:
    for metric in metrics:
        values, base = done.values(case, variant, metric), done.values(case, DEFAULT, metric)
        ratio = comparison.compare(values, base) if values else None
        if ratio is not None:
            return ratio.estimate
    return None


def ranking(done: Measurement, case: str) -> list[tuple[str, float, float]]:
    """Variants with their ratios of time and memory to the default's, the fastest first, without those that failed."""
    rows: list[tuple[str, float, float]] = []
    for variant in done.variants:
        time, memory = (_ratio(done, case, variant.name, metrics) for metrics in (TIMES, MEMORIES))
        if time is not None and memory is not None:
            rows.append((variant.name, time, memory))
    return sorted(rows, key=lambda row: row[1])


def finalists(ranked: Sequence[tuple[str, float, float]]) -> list[str]:
    """Those that save time, then those that save memory and lose next to no time."""
    faster = [name for name, time, _ in ranked if time < 1 and name != DEFAULT]
    single_ones = [name for name in faster if not name.startswith(RANDOM)]
    chosen = single_ones[:BY_TIME] + [name for name in faster if name.startswith(RANDOM)][:COMBINED]
    lean = [row for row in ranked if row[1] <= TOLERATED and row[2] < 1 and row[0] not in (DEFAULT, *chosen)]
    return chosen + [name for name, _, _ in sorted(lean, key=lambda row: row[2])[:BY_MEMORY]]


def screened(ranked: Sequence[tuple[str, float, float]]) -> list[str]:
    """A line for the record."""
    return [f"screened: {name}: time {time:.3f}, memory {memory:.3f} of the default's" for name, time, memory in ranked]


# ---- What came of it -------------------------------------------------------------------------------------------------


def headroom(record: Record, case: str) -> tuple[str, statistics.Interval] | None:
    """The fixed setting that is shown to be fastest, and its ratio of time to the default's; None: none is."""
    fixed_ones = [
        name for name, facts in record.variants.items() if facts.settings.get(FIXED) == "0" and name != DEFAULT
    ]
    metric = next(name for name in TIMES if name in record.metrics())
    confidence = statistics.family_confidence(max(len(fixed_ones), 1))
    found = []
    for name in fixed_ones:
        ratio = comparison.compare(record.values(case, name, metric), record.values(case, DEFAULT, metric), confidence)
        if ratio is not None and ratio.is_bounded and ratio.high < 1:
            found.append((name, ratio))
    return min(found, key=lambda pair: pair[1].estimate, default=None)


def report(record: Record, kept: str | None = None) -> Report:
    primary = next(name for name in TIMES if name in record.metrics())
    metrics = [name for name in MEMORIES if name in record.metrics()][:1]
    base = comparison.report(record, "sweep", baseline=DEFAULT, primary=primary, metrics=metrics, kept=kept)
    summary: list[str] = []
    for case in record.cases:
        best = headroom(record, case)
        if best is None:
            summary.append(f"{case}: no fixed setting is shown to be faster than the default.")
        else:
            summary.append(
                f"{case}: the fastest fixed setting is {best[0]}, {words.ratio(best[1])} of the default's time."
            )
    knobs = tuple(
        f"{name}: {facts.settings['HAKMEM_KNOBS']}"
        for name, facts in record.variants.items()
        if "HAKMEM_KNOBS" in facts.settings
    )
    return replace(base, summary=tuple(summary), notes=(*knobs, *base.notes))
