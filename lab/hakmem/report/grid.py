"""A comparison as rows and columns of text, the same for terminals, markdown and HTML.

The shape follows from what is compared: one case has a row per allocator, two allocators have a row per case with
their medians and ratio, and anything larger is a matrix of ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hakmem import words
from hakmem.report.model import Case, Comparison, Entry
from hakmem.statistics import Interval, Verdict

NOTHING = "-"
BASELINE = "baseline"
MEAN = "geometric mean"
SHOWN = (Verdict.FASTER, Verdict.SLOWER)
# In a matrix, where there is no room for a word.
SIGNS = {Verdict.FASTER: " +", Verdict.SLOWER: " -", Verdict.UNKNOWN: " ?", Verdict.UNDECIDED: " ?"}
LEGEND = "Ratios to {baseline}; + is better, - is worse, ? could be either, without a sign there is no difference."

SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"), (1e-9, "ns")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes")),
    "1/s": ((1e6, "million/s"), (1e3, "thousand/s"), (1.0, "1/s")),
}


@dataclass(frozen=True)
class Cell:
    text: str
    verdict: Verdict | None = None
    strength: int = 0  # of a difference that is shown: 1 (slight) to 4
    detail: str = ""  # what a matrix has no room for


@dataclass(frozen=True)
class Grid:
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1  # how many columns, from the left, hold words; the others hold figures
    mean: tuple[Cell, ...] | None = None  # the last row
    legend: str = ""

    def all_rows(self) -> tuple[tuple[Cell, ...], ...]:
        return self.rows if self.mean is None else (*self.rows, self.mean)


def of(comparison: Comparison) -> Grid:
    if len(comparison.cases) == 1:
        return _by_allocator(comparison)
    if len(comparison.names) == 2:
        return _pair(comparison)
    return _matrix(comparison)


def ratio_text(ratio: Interval) -> str:
    return f"{ratio.estimate:.{words.places(ratio)}f}"


def interval_text(ratio: Interval) -> str:
    if not ratio.is_bounded:
        return NOTHING
    places = words.places(ratio)
    return f"{ratio.low:.{places}f} to {ratio.high:.{places}f}"


def strength(ratio: Interval, verdict: Verdict | None) -> int:
    if verdict not in SHOWN:
        return 0
    change = abs(math.log(ratio.estimate))
    return 1 + sum(change >= math.log(bound) for bound in (1.05, 1.15, 1.5))


def scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """What to divide by, and the unit that gives: for axes and columns that name it once."""
    largest = max(map(abs, values))
    steps = SCALES.get(unit, ((1.0, unit),))
    return next((step for step in steps if largest >= step[0]), steps[-1])


def _median(entry: Entry, unit: str) -> Cell:
    return Cell(words.amount(entry.median, unit) if entry.median is not None else NOTHING)


def _scatter(entry: Entry) -> Cell:
    """Standard deviation of the runs, as a share of their mean."""
    if len(entry.values) < 2 or not any(entry.values):
        return Cell(NOTHING)
    return Cell(f"{100 * statistics.stdev(entry.values) / statistics.mean(entry.values):.1f} %")


def _standing(entry: Entry, rounds: int, nothing: str = NOTHING) -> tuple[Cell, Cell, Cell]:
    """Ratio, interval and verdict."""
    if entry.ratio is None:
        return Cell(nothing), Cell(""), Cell("")
    ratio, verdict = entry.ratio, entry.verdict
    said = Cell(words.verdict(verdict, rounds) if verdict else "", verdict, strength(ratio, verdict))
    return Cell(ratio_text(ratio)), Cell(interval_text(ratio)), said


def _by_allocator(comparison: Comparison) -> Grid:
    case = comparison.cases[0]
    rows = []
    for name in comparison.names:
        entry = case.entry(name)
        standing = _standing(entry, comparison.rounds, BASELINE if name == comparison.baseline else NOTHING)
        rows.append((Cell(name), _median(entry, comparison.unit), _scatter(entry), *standing))
    return Grid(("allocator", "median", "scatter", "ratio", "interval", "verdict"), tuple(rows))


def _pair(comparison: Comparison) -> Grid:
    baseline, candidate = comparison.names

    def row(case: Case) -> tuple[Cell, ...]:
        medians = (_median(case.entry(name), comparison.unit) for name in comparison.names)
        return (Cell(case.name), *medians, *_standing(case.entry(candidate), comparison.rounds))

    mean = None
    if comparison.mean is not None:
        mean = (Cell(MEAN), Cell(""), Cell(""), *_standing(comparison.mean.entry(candidate), comparison.rounds))
    columns = ("", baseline, candidate, "ratio", "interval", "verdict")
    return Grid(columns, tuple(row(case) for case in comparison.cases), mean=mean)


def _matrix(comparison: Comparison) -> Grid:
    baseline, *others = comparison.names

    def row(case: Case, name: str, unit: str) -> tuple[Cell, ...]:
        first = _median(case.entry(baseline), unit) if case is not comparison.mean else Cell("")
        return (Cell(name), first, *(_short(case.entry(other), unit) for other in others))

    mean = row(comparison.mean, MEAN, comparison.unit) if comparison.mean is not None else None
    rows = tuple(row(case, case.name, comparison.unit) for case in comparison.cases)
    return Grid(("", baseline, *others), rows, mean=mean, legend=LEGEND.format(baseline=baseline))


def every_interval(comparison: Comparison) -> Grid:
    """A row per case and allocator: what a matrix has no room for."""
    rows = []
    for case in [*comparison.cases, *([comparison.mean] if comparison.mean else [])]:
        for name in comparison.names[1:]:
            entry = case.entry(name)
            rows.append(
                (Cell(case.name), Cell(name), _median(entry, comparison.unit), *_standing(entry, comparison.rounds))
            )
    return Grid(("", "allocator", "median", "ratio", "interval", "verdict"), tuple(rows), words=2)


def _short(entry: Entry, unit: str) -> Cell:
    median = _median(entry, unit).text
    if entry.ratio is None:
        return Cell(median)
    ratio, verdict = entry.ratio, entry.verdict
    places = words.places(ratio, ratio.estimate, least=2)
    text = f"{ratio.estimate:.{places}f}{SIGNS.get(verdict, '') if verdict else ''}"
    detail = f"{median if entry.values else ''} {interval_text(ratio)}".strip()
    return Cell(text, verdict, strength(ratio, verdict), detail)
