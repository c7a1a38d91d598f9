"""The plots of an HTML report. None relies on colour alone: rows and lines are named, markers differ, and a marker is
filled when its difference is shown beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

from hakmem import words
from hakmem.report import canvas, grid
from hakmem.report.canvas import COLOURS, FONT, WIDTH
from hakmem.report.model import Case, Comparison, Course, Entry, Shares
from hakmem.statistics import Interval, Verdict, summary

ROW = 24  # height of an allocator
RUNS = 28  # the same, where its runs are shown
RIGHT = 12
FIGURES = 188  # room for a ratio and its interval beside a row
LINES = 260  # height of a plot of lines
LABEL = 16  # height of a line's name
MOST_MARKS = 12  # of one line that has many points

MUTED: dict[str, Any] = {"color": COLOURS["muted"], "fontsize": FONT}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("solid", (0, (5, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)))
STANDINGS = {Verdict.FASTER: ("better", "o"), Verdict.SLOWER: ("worse", "D")}


# ---- Ratios --------------------------------------------------------------------------------------------------------


def ratios(comparison: Comparison, name: str) -> str:
    """Each ratio with its interval against 1: a row per allocator, below its case if there are several; a row per case
    if there is one allocator to compare."""
    cases = [*comparison.cases, *([comparison.mean] if comparison.mean else [])]
    found = [(case.name, entry) for case in cases for entry in case.entries if entry.ratio]
    one_allocator = len({entry.name for _, entry in found}) == 1
    one_case = len({case for case, _ in found}) == 1
    rows: list[tuple[str, Entry | None]] = []  # a row without an entry is a heading
    for case, of_case in groupby(found, key=lambda pair: pair[0]):
        entries = [entry for _, entry in of_case]
        if one_case or not one_allocator:
            rows += [] if one_case else [(case, None)]
            rows += [(entry.name, entry) for entry in entries]
        else:
            rows += [(case, entry) for entry in entries]
    left = canvas.margin(label for label, entry in rows if entry) + 10
    with canvas.styled():
        figure = canvas.figure(len(rows) * ROW)
        axes = canvas.axes(figure, left, WIDTH - FIGURES - RIGHT)
        _ratio_scale(axes, [entry.ratio for _, entry in found if entry.ratio])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.yaxis.set_major_locator(NullLocator())
        axes.axvline(1, color=COLOURS["muted"], linewidth=1.4, zorder=1)
        beside: dict[str, Any] = {
            "transform": blended_transform_factory(figure.transFigure, axes.transData),
            "va": "center_baseline",
        }
        for place, (label, entry) in enumerate(rows):
            if entry is None:
                axes.text(0, place, canvas.short(label, 120), weight="bold", **beside)
            else:
                axes.text((left - 10) / WIDTH, place, canvas.short(label), ha="right", **beside)
                axes.text(1 - FIGURES / WIDTH, place, _figures(entry), **beside)
                _ratio_row(axes, entry, place)
        sides = ("better", "worse") if comparison.less_is_better else ("worse", "better")
        axes.set_xlabel(f"ratio to {canvas.short(comparison.baseline)}")
        axes.annotate(f"\N{LEFTWARDS ARROW} {sides[0]}", (0, 1), (0, 8), "axes fraction", "offset points", **MUTED)
        axes.annotate(
            f"{sides[1]} \N{RIGHTWARDS ARROW}", (1, 1), (0, 8), "axes fraction", "offset points", ha="right", **MUTED
        )
        spoken = (f"{case}, {entry.name}: {_spoken(entry, comparison.rounds)}" for case, entry in found)
        return canvas.svg(figure, name, f"{comparison.title}, ratios to {comparison.baseline}", "; ".join(spoken))


def _ratio_row(axes: Axes, entry: Entry, place: int) -> None:
    assert entry.ratio is not None
    ratio = entry.ratio
    shown = entry.verdict in STANDINGS
    colour, marker = STANDINGS.get(entry.verdict or Verdict.UNDECIDED, ("muted", "o"))
    if ratio.is_bounded:
        axes.hlines(place, ratio.low, ratio.high, color=COLOURS[colour], linewidth=2.5)
    fill = COLOURS[colour if shown else "surface"]
    edge: dict[str, Any] = {"markeredgecolor": COLOURS[colour], "markeredgewidth": 1.8}
    axes.plot(ratio.estimate, place, marker, color=fill, markersize=7, **edge)


def _figures(entry: Entry) -> str:
    assert entry.ratio is not None
    interval = grid.interval_text(entry.ratio) if entry.ratio.is_bounded else "no interval"
    return f"{grid.ratio_text(entry.ratio)}  ({interval})"


def _spoken(entry: Entry, rounds: int) -> str:
    return _figures(entry) + (f", {words.verdict(entry.verdict, rounds)}" if entry.verdict else "")


def _ratio_scale(axes: Axes, ratios: Sequence[Interval]) -> None:
    """Logarithmic: half and double are equally far from 1. A wide interval may leave the plot, an estimate may not."""
    estimates = [1.0, *(ratio.estimate for ratio in ratios)]
    ends = [end for ratio in ratios if ratio.is_bounded for end in (ratio.low, ratio.high)]
    reach = max(max(estimates) / min(estimates), 2) ** 0.6
    low = max(min([*ends, *estimates]), min(estimates) / reach)
    high = min(max([*ends, *estimates]), max(estimates) * reach)
    room = (high / low) ** 0.04
    low, high = min(low, 0.995) / room, max(high, 1.005) * room
    if high / low > 3:
        steps = (1, 2, 5) if high / low > 30 else (1, 1.5, 2, 3, 5, 7)
        marks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    else:
        marks = [float(mark) for mark in MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([mark for mark in marks if low <= mark <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda mark, _: f"{mark:.4g}"))
    axes.grid(axis="x")


# ---- Runs ----------------------------------------------------------------------------------------------------------


def runs(comparison: Comparison, case: Case, name: str) -> str:
    """Every run of one case: left as dots around median and interval, right in the order of rounds."""
    entries = [case.entry(own) for own in comparison.names if case.entry(own).values]
    factor, unit = grid.scale([value for entry in entries for value in entry.values], comparison.unit)
    label = _label(comparison.title, unit)
    scaled = {entry.name: [value / factor for value in entry.values] for entry in entries}
    low, high = _limits([value for values in scaled.values() for value in values])
    left = canvas.margin(scaled) + 10
    middle = left + (WIDTH - left) * 0.48
    with canvas.styled():
        figure = canvas.figure(max(len(entries) * RUNS, 130))
        dots = canvas.axes(figure, left, middle)
        rounds = canvas.axes(figure, middle + 80, WIDTH - RIGHT)
        _medians(dots, list(scaled.values()))
        for place, (own, values) in enumerate(scaled.items()):
            colour, marker, dashes = _look(comparison.names.index(own))
            shape: dict[str, Any] = {"markersize": 5, "markeredgewidth": 0, "clip_on": False, "zorder": 4}
            dots.plot(values, _heights(place, len(values)), marker, color=colour, alpha=0.8, **shape)
            steps = range(1, len(values) + 1)
            rounds.plot(steps, values, marker=marker, color=colour, linestyle=dashes, linewidth=1.5, **shape)
        dots.set_xlim(low, high)
        dots.set_ylim(len(entries) - 0.5, -0.5)
        dots.set_yticks(range(len(entries)), [canvas.short(own) for own in scaled])
        dots.tick_params(axis="y", pad=10, labelsize=FONT, labelcolor=COLOURS["ink"])
        dots.xaxis.set_major_locator(MaxNLocator(5))
        dots.grid(axis="x")
        dots.set_xlabel(label)
        rounds.set_ylim(low, high)
        most = max(len(values) for values in scaled.values())
        rounds.set_xlim(0.7, most + 0.3)
        rounds.set_xticks(range(1, most + 1, -(-most // 12)))
        rounds.yaxis.set_major_locator(MaxNLocator(5))
        rounds.grid(axis="y")
        rounds.set_title(label)
        rounds.set_xlabel("round")
        spoken = (f"{entry.name}: median {words.amount(entry.median or 0, comparison.unit)}" for entry in entries)
        return canvas.svg(figure, name, f"{case.name}, {comparison.title} of every run", "; ".join(spoken))


def _heights(place: int, rounds: int) -> list[float]:
    """From the first round, above, to the last, below: a drift is a slope."""
    last = rounds - 1
    return [place + 0.3 * (2 * turn / last - 1 if last else 0) for turn in range(rounds)]


def _medians(axes: Axes, rows: Sequence[Sequence[float]]) -> None:
    """A long stroke at the median of each row, a thin line for its interval."""
    found = [summary(values) for values in rows]
    bounded = [(place, one.interval) for place, one in enumerate(found) if one.interval.is_bounded]
    places, lows, highs = ([place for place, _ in bounded], [i.low for _, i in bounded], [i.high for _, i in bounded])
    axes.hlines(places, lows, highs, color=COLOURS["ink"], linewidth=1.5, zorder=3)
    medians, tops = [one.median for one in found], [place - 0.38 for place in range(len(found))]
    axes.vlines(medians, tops, [top + 0.76 for top in tops], color=COLOURS["ink"], linewidth=2.2, zorder=3)


# ---- Lines ---------------------------------------------------------------------------------------------------------


def course(section: Course, name: str) -> str:
    """Lines over time, each named at its end."""
    lines = [line for line in section.lines if line.values]
    factor, unit = grid.scale([value for line in lines for value in line.values], section.unit)
    low, high = _limits([value / factor for line in lines for value in line.values])
    if 0 < low < 0.5 * high:
        low = 0.0
    times = [time for line in lines for time in line.times]
    right = WIDTH - RIGHT - canvas.margin(line.name for line in lines) - 14
    places = _apart([line.values[-1] / factor for line in lines], (high - low) * LABEL / LINES, high)
    with canvas.styled():
        figure = canvas.figure(LINES)
        axes = canvas.axes(figure, 60, right)
        axes.set_ylim(low, high)
        axes.set_xlim(*((min(times), max(times)) if min(times) < max(times) else _limits(times)))
        for number, (line, place) in enumerate(zip(lines, places, strict=True)):
            colour, marker, dashes = _look(number)
            values = [value / factor for value in line.values]
            step = -(-len(values) // MOST_MARKS)
            every = (number % step, step)
            look: dict[str, Any] = {
                "color": colour,
                "marker": marker,
                "markersize": 5,
                "markeredgewidth": 0,
                "linestyle": dashes,
            }
            axes.plot(line.times, values, linewidth=1.8, markevery=every, clip_on=False, **look)
            axes.annotate(
                canvas.short(line.name),
                (line.times[-1], values[-1]),
                (right + 22, canvas.BOTTOM + (place - low) / (high - low) * LINES),
                textcoords="figure points",
                va="center_baseline",
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": colour, "shrinkA": 3, "shrinkB": 5, "relpos": (0, 0.5)},
            )
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.grid(axis="y")
        axes.set_title(_label(section.title, unit))
        axes.set_xlabel(_label(section.time_title, section.time_unit))
        ends = ((line.name, *(words.amount(line.values[end], section.unit) for end in (0, -1))) for line in lines)
        spoken = (f"{own}: from {first} to {last}" for own, first, last in ends)
        return canvas.svg(figure, name, f"{section.title} over {section.time_title}", "; ".join(spoken))


def _apart(values: Sequence[float], least: float, high: float) -> list[float]:
    """Places for labels of these values, at least so far apart, none above `high`."""
    places = list(values)
    order = sorted(range(len(values)), key=lambda index: values[index])
    for before, after in zip(order, order[1:], strict=False):
        places[after] = max(places[after], places[before] + least)
    ceiling = high
    for index in reversed(order):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - least
    return places


# ---- Shares --------------------------------------------------------------------------------------------------------

GROUPS = (0, 2, 1)  # colours


def shares(section: Shares, name: str) -> str:
    """A bar for each share, as long as it is of the whole; named on the left, with its amount on the right."""
    left = canvas.margin(share.name for share in section.shares) + 10
    beside: dict[str, Any] = {"va": "center_baseline"}
    with canvas.styled():
        figure = canvas.figure(len(section.shares) * ROW)
        axes = canvas.axes(figure, left, WIDTH - FIGURES - RIGHT)
        across = blended_transform_factory(figure.transFigure, axes.transData)
        said = []
        for place, share in enumerate(section.shares):
            part = share.value / section.whole
            colour = COLOURS[f"series-{GROUPS[share.group % len(GROUPS)]}"]
            axes.barh(place, abs(part), 0.64, color=colour)
            amount = ("-" if share.value < 0 else "") + words.amount(abs(share.value), section.unit)
            said.append(f"{share.name}: {amount}, {part:.1%}")
            axes.text((left - 10) / WIDTH, place, canvas.short(share.name), ha="right", transform=across, **beside)
            axes.text(1 - FIGURES / WIDTH, place, f"{amount}, {part:.1%}", transform=across, **beside)
        axes.set_xlim(0, max(abs(share.value) / section.whole for share in section.shares) or 1)
        axes.set_ylim(len(section.shares) - 0.5, -0.5)
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda mark, _: f"{100 * mark:g}%"))
        axes.grid(axis="x")
        axes.set_xlabel(f"of {words.amount(section.whole, section.unit)}")
        return canvas.svg(figure, name, section.title, "; ".join(said))


# ---- Values --------------------------------------------------------------------------------------------------------


def _look(number: int) -> tuple[str, str, str | tuple[int, tuple[float, ...]]]:
    """Colour, marker and dashes of the allocator at this place."""
    colour = COLOURS[f"series-{number % canvas.SERIES}"]
    return colour, MARKERS[number % len(MARKERS)], DASHES[number // 3 % len(DASHES)]


def _label(title: str, unit: str) -> str:
    title = canvas.short(title, 36)
    return title if not unit or title.endswith(unit) else f"{title} ({unit})"


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Around the values, also around equal ones."""
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - room, high + room
