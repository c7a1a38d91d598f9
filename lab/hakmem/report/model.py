"""What a report says, without how it looks. Commands fill it in; text.py, markdown.py and html.py show it.

A section is a Comparison | Course | Shares | Table
(one metric of several allocators), a Course (values over time), Shares (a whole and its
parts) or a Table (anything else).
"""

from __future__ import annotations

import statistics as medians
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hakmem.statistics import Interval, Verdict


@dataclass(frozen=True)
class Entry:
    """One allocator in one case: raw values per round, and how it stands to the baseline. No values: it has no figure
    here, or the entry is of a mean."""

    name: str
    values: tuple[float, ...] = ()
    ratio: Interval | None = None  # None: it is the baseline, or there is nothing to compare
    verdict: Verdict | None = None

    @property
    def median(self) -> float | None:
        return medians.median(self.values) if self.values else None


@dataclass(frozen=True)
class Case:
    name: str
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
        return next((entry for entry in self.entries if entry.name == name), Entry(name))


@dataclass(frozen=True)
class Comparison:
    """One metric: the same allocators in every case, as far as they have figures."""

    title: str
    unit: str  # as in hakmem.measure.METRICS
    baseline: str
    cases: tuple[Case, ...]
    less_is_better: bool = True
    mean: Case | None = None  # geometric mean over the cases: ratios without values
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all allocators, the baseline first."""
        every = dict.fromkeys(entry.name for case in self.cases for entry in case.entries)
        return (self.baseline, *(name for name in every if name != self.baseline))

    @property
    def rounds(self) -> int:
        return max((len(entry.values) for case in self.cases for entry in case.entries), default=0)


@dataclass(frozen=True)
class Line:
    name: str
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Course:
    """Values over time, or over anything else that has an order."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    time_title: str = "time"
    time_unit: str = "s"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Share:
    name: str
    value: float
    group: int = 0  # shares of one group look alike
    parts: tuple[tuple[str, float], ...] = ()  # named parts of it


@dataclass(frozen=True)
class Shares:
    """A whole, and shares that add up to it."""

    title: str
    unit: str
    whole: float
    shares: tuple[Share, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: int = 1  # how many columns, from the left, hold words; the others hold figures


Section: TypeAlias = Comparison | Course | Shares | Table


@dataclass(frozen=True)
class Report:
    title: str
    command: str
    sections: tuple[Section, ...]
    summary: tuple[str, ...] = ()  # what the reader should know first, one sentence each
    failures: tuple[str, ...] = ()  # what has no figure, and why
    notes: tuple[str, ...] = ()
    date: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)  # values that say what they are without their names
    records: tuple[str, ...] = ()  # ids
