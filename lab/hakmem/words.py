"""Numbers and amounts as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hakmem.machine import Machine
from hakmem.statistics import Interval, Verdict, minimum_rounds

SAYS = {
    Verdict.FASTER: "better",
    Verdict.SLOWER: "worse",
    Verdict.NO_DIFFERENCE: "no difference",
    Verdict.UNKNOWN: "don't know",
}


def verdict(found: Verdict, rounds: int) -> str:
    """As measured in so many rounds."""
    return few_rounds(rounds, minimum_rounds()) if found is Verdict.UNDECIDED else SAYS[found]


def interleaved(rounds: int) -> str:
    return f"{rounds} rounds, interleaved" if rounds != 1 else "one round"


def few_rounds(rounds: int, least: int) -> str:
    return f"too few rounds: {rounds} of at least {least}"


def amount(value: float, unit: str) -> str:
    """A value with its unit, three figures or so: 1.23 s, 45.6 ms, 12.3 MiB, 4,567 faults."""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
            if value * factor >= 1:
                return f"{figures(value * factor)} {name}"
        return f"{figures(value * 1e9)} ns"
    if unit == "B":
        for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value >= 1 << shift:
                return f"{figures(value / (1 << shift))} {name}"
        return f"{value:.0f} B"
    if unit == "1/s":
        return f"{figures(value / 1e6)} M/s" if value >= 1e6 else f"{figures(value)} /s"
    if value == int(value):
        return f"{value:,.0f} {unit}".rstrip()
    return f"{figures(value)} {unit}".rstrip()


def share(value: float) -> str:
    """As somebody has chosen it: 5%, 0.25%."""
    return f"{100 * value:.6g}%"


def figures(value: float) -> str:
    """Three significant figures, without an exponent."""
    for least, places in ((1000, 0), (100, 1), (1, 2)):
        if round(value, places + 1) >= least:
            return f"{value:,.{places}f}"
    return f"{value:.3g}"


def ratio(interval: Interval) -> str:
    shown = places(interval)
    if not interval.is_bounded:
        return f"{interval.estimate:.{shown}f}"
    return f"{interval.estimate:.{shown}f} ({interval.low:.{shown}f}-{interval.high:.{shown}f})"


def places(interval: Interval, value: float | None = None, least: int = 3) -> int:
    """So many that a value of a ratio that is shown to differ from 1 doesn't look like 1: the end that is nearest to 1,
    unless told."""
    if not interval.is_bounded or interval.holds(1):
        return least
    if value is None:
        value = interval.high if interval.high < 1 else interval.low
    return next((count for count in range(least, 6) if round(value, count) != 1), 6)


def change(interval: Interval) -> str:
    """A ratio as that by which it differs from 1."""
    ends, shown = (interval.estimate, interval.low, interval.high), places(interval) - 2
    estimate, low, high = (f"{(end - 1) * 100:+.{shown}f}" for end in ends)
    return f"{estimate} % ({low} to {high} %)" if interval.is_bounded else f"{estimate} %"


def cores(facts: Machine) -> str:
    return f"{facts.cores} core{'s' if facts.cores != 1 else ''}"


def machine(facts: Machine) -> str:
    """One line for the head of a table."""
    governor = f", governor {facts.governor}" if facts.governor else ""
    huge = f", THP {facts.transparent_hugepage}" if facts.transparent_hugepage else ""
    return f"{facts.cpu}, {cores(facts)}, Linux {facts.kernel}{governor}{huge}, load {facts.load[0]:.2f}"


def machines(facts: Iterable[Machine]) -> str:
    """As many of each processor."""
    kinds = Counter(f"{one.cpu}, {cores(one)}" for one in facts)
    return f"{kinds.total()} machines: " + "; ".join(f"{count} x {kind}" for kind, count in kinds.items())


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns in line, the first to the left, the others to the right."""
    every = [head, *lines]
    widths = [max(len(line[i]) for line in every) for i in range(len(head))]

    def row(line: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  ".join([line[0].ljust(widths[0]), *cells]).rstrip()

    return "\n".join(row(line) for line in every)


def grouped_table(first: str, groups: Iterable[str], columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Of figures that several groups have alike: the names of the groups stand above their columns."""
    names = list(groups)
    every = [column for _ in names for column in columns]
    text = table([first, *every], lines).splitlines()
    head, width = text[0], len(columns)
    widths = [max(len(line[i]) for line in [[first, *every], *lines]) for i in range(len(lines[0]))]
    above = " " * widths[0]
    for number, name in enumerate(names):
        own = widths[1 + number * width : 1 + (number + 1) * width]
        above += "  " + name.center(sum(own) + 2 * (width - 1), "-")
    return "\n".join([above, head, *text[1:]])
