"""Pictures of the documentation in which each allocator is a point, computed from records: time against memory, and one
metric in several cases, a line for each case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from hakmem import comparison, figures
from hakmem.figures import FigureError, Find
from hakmem.measure import CEILING
from hakmem.report import chart
from hakmem.report.chart import Axis, Panel
from hakmem.statistics import Interval

OWN = "hakmem"
WIDTH, HEIGHT = 370, 300
LINE = 14  # height of a name
LETTER = 6.6  # width of a letter of a name
MARKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10)
Box = tuple[float, float, float, float]  # left, top, right, bottom


class _PanelDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    record: str
    cases: Annotated[list[str], msgspec.Meta(min_length=1)]


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time against memory."""

    title: str
    baseline: str  # whose time and memory are 1
    time: str  # a metric of which more is better: its reciprocal is time
    memory: str
    panels: Annotated[list[_PanelDefinition], msgspec.Meta(min_length=1)]


class LinesDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric, of which less is better."""

    title: str
    axis: str  # its title
    record: str
    metric: str
    baseline: str  # whose value is 1
    cases: Annotated[list[str], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class _Point:
    name: str
    time: Interval
    memory: Interval


def parse(definition: object) -> Definition | LinesDefinition:
    try:
        if isinstance(definition, dict) and "axis" in definition:
            return msgspec.convert(definition, LinesDefinition)
        return msgspec.convert(definition, Definition)
    except msgspec.ValidationError as error:
        raise FigureError(f"the picture's definition: {error}") from None


def markdown(definition: Definition | LinesDefinition, find: Find, picture: str, link: Callable[[str], str]) -> str:
    """The picture, what it shows in words, and where it comes from."""
    if isinstance(definition, LinesDefinition):
        names, told = [definition.record], _told_of_lines(definition, find)
    else:
        names, told = list(dict.fromkeys(panel.record for panel in definition.panels)), _told(definition, find)
    sources = [f"{figures.provenance(find(name))} ([record]({link(name)}))." for name in names]
    return "\n".join([f"![{told}]({picture})", "", *sources])


def svg(definition: Definition | LinesDefinition, find: Find) -> str:
    return _svg_of_lines(definition, find) if isinstance(definition, LinesDefinition) else _scatter(definition, find)


def _scatter(definition: Definition, find: Find) -> str:
    sides = [_points(definition, panel, find) for panel in definition.panels]
    every = [point for points in sides for point in points]
    x = _axis(f"peak memory, {definition.baseline} = 1; less is better", [point.memory for point in every])
    y = _axis(f"time per operation, {definition.baseline} = 1; less is better", [point.time for point in every])
    panels = []
    for part, points in zip(definition.panels, sides, strict=True):
        panel = Panel(part.title, x, y, WIDTH, HEIGHT)
        _draw(panel, points, definition.baseline)
        panels.append(panel)
    legend = [
        ("first", OWN, True),
        ("third", "others", True),
        ("interval", "95 % interval", False),
    ]
    text = f"Less is better in both directions. {_told(definition, find)}"
    return chart.picture(definition.title, text, panels, legend)


LINES_WIDTH, LINE_HEIGHT = 560, 30


def _ratios(definition: LinesDefinition, find: Find) -> dict[str, dict[str, float]]:
    """By case, the multiples of the baseline's that there are, by variant."""
    record = find(definition.record)
    if not comparison.metric(record, definition.metric).less_is_better:
        raise FigureError(f"less of {definition.metric} is not better")
    found: dict[str, dict[str, float]] = {}
    for case in definition.cases:
        found[case] = {}
        for name in record.variants:
            if record.values(case, name, definition.metric):
                expression = f'ratio("{case}", "{name}", "{definition.baseline}", {definition.metric})'
                found[case][name] = figures.ratio_of(record, figures.parse(expression, definition.record)).estimate
    return found


def _told_of_lines(definition: LinesDefinition, find: Find) -> str:
    told = []
    for case, found in _ratios(definition, find).items():
        others = [value for name, value in found.items() if name != OWN]
        told.append(f"{case}: {OWN} {found[OWN]:.2f}, others {min(others):.2f} to {max(others):.2f}")
    return f"{definition.axis}. {'; '.join(told)}."


def _svg_of_lines(definition: LinesDefinition, find: Find) -> str:
    found = _ratios(definition, find)
    every = [value for ratios in found.values() for value in ratios.values()]
    low, high = min([1.0, *every]) / 1.12, max([1.0, *every]) * 1.12
    x = Axis(definition.axis, low, high, [mark for mark in MARKS if low <= mark <= high], is_logarithmic=True)
    count = len(definition.cases)
    y = Axis("", 0, count, [count - 0.5 - i for i in range(count)], names=definition.cases)
    panel = Panel("", x, y, LINES_WIDTH, LINE_HEIGHT * count)
    for place, ratios in zip(y.marks, found.values(), strict=True):
        for name in sorted(ratios, key=lambda name: (name == OWN, name == definition.baseline)):
            series = "first" if name == OWN else "second" if name == definition.baseline else "third"
            panel.mark((ratios[name], place), series, 7 if name == OWN else 5)
    legend = [("first", OWN, True), ("second", definition.baseline, True), ("third", "others", True)]
    text = f"Further left is less. {_told_of_lines(definition, find)}"
    return chart.picture(definition.title, text, [panel], legend)


def _told(definition: Definition, find: Find) -> str:
    told = []
    for panel in definition.panels:
        points = _points(definition, panel, find)
        said = (f"{one.name} {one.time.estimate:.2f} and {one.memory.estimate:.2f}" for one in points)
        told.append(f"{panel.title}: {', '.join(said)}")
    return f"Time per operation and peak memory, {definition.baseline} = 1. {'; '.join(told)}."


def _points(definition: Definition, panel: _PanelDefinition, find: Find) -> list[_Point]:
    record = find(panel.record)
    if comparison.metric(record, definition.time).less_is_better:
        raise FigureError(f"more of {definition.time} is not better")

    def ratio(name: str, metric: str) -> Interval:
        expression = f'ratio(case, "{name}", "{definition.baseline}", {metric})'
        return figures.ratio_of(record, figures.parse(expression, panel.record, tuple(panel.cases)))

    names = [name for name in record.variants if name not in (definition.baseline, CEILING)]
    return [_Point(name, _inverted(ratio(name, definition.time)), ratio(name, definition.memory)) for name in names]


def _inverted(of: Interval) -> Interval:
    """Time, of throughput."""
    return Interval(1 / of.estimate, 1 / of.high, 1 / of.low)


def _axis(title: str, intervals: list[Interval]) -> Axis:
    low = min([1.0, *(one.low for one in intervals)]) / 1.12
    high = max([1.0, *(one.high for one in intervals)]) * 1.12
    return Axis(title, low, high, [mark for mark in MARKS if low <= mark <= high], is_logarithmic=True)


def _draw(panel: Panel, points: list[_Point], baseline: str) -> None:
    places = {baseline: (1.0, 1.0)} | {one.name: (one.memory.estimate, one.time.estimate) for one in points}
    crosses = [((one.memory.low, one.memory.high), (one.time.low, one.time.high), places[one.name]) for one in points]
    for xs, ys, at in crosses:
        panel.cross(xs, ys, at, "interval")
    for name, at in places.items():
        panel.mark(at, "first" if name == OWN else "third", 7 if name == OWN else 5)
    taken = [_box(panel.place(xs[0], at[1]), panel.place(xs[1], at[1])) for xs, _, at in crosses]
    taken += [_box(panel.place(at[0], ys[1]), panel.place(at[0], ys[0])) for _, ys, at in crosses]
    for name, (x, y, anchor) in _labels({name: panel.place(*at) for name, at in places.items()}, taken).items():
        panel.name(x, y, name, "title" if name == OWN else "small", anchor)


def _labels(marks: dict[str, tuple[float, float]], taken: list[Box]) -> dict[str, tuple[float, float, str]]:
    """Each name beside its mark, where it covers no mark, no interval and no other name."""
    taken = [*taken, *(_box(at, at, 6) for at in marks.values())]
    found: dict[str, tuple[float, float, str]] = {}
    for name, (x, y) in marks.items():
        wide = len(name) * LETTER
        tries = [(x + 11, y + 4, "start"), (x - 11, y + 4, "end")]
        for step in (1, 1.5, 2, 3):
            for side in (1, -1):
                height = y + 4 + side * step * LINE
                tries += [(x, height, "middle"), (x + 4, height, "start"), (x - 4, height, "end")]
        for left, base, anchor in tries:
            start = left - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            box = (start, base - LINE + 3, start + wide, base + 3)
            if 0 <= start and start + wide <= WIDTH + 20 and not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        found[name] = (left, base, anchor)
    return found


def _box(one: tuple[float, float], other: tuple[float, float], around: float = 1) -> Box:
    return one[0] - around, one[1] - around, other[0] + around, other[1] + around


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
