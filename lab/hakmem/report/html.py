"""A report as one HTML file: no resource of elsewhere, readable in light and dark, on paper, and without seeing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hakmem.report import grid, markdown, page, plots
from hakmem.report.grid import Grid
from hakmem.report.model import Comparison, Course, Report, Section, Shares

MOST_RATIOS = 60  # that a plot of ratios stays readable with; beyond that it shows those of the mean
MOST_OPEN = 4  # cases whose runs are shown without being asked for


@dataclass(frozen=True)
class Runs:
    """One case, run by run."""

    title: str
    plot: str
    unit: str
    rows: tuple[tuple[str, ...], ...]  # allocator, then a value per round


@dataclass(frozen=True)
class Part:
    """A section as the template takes it."""

    title: str
    subtitle: str
    notes: tuple[str, ...]
    plots: tuple[str, ...] = ()
    grid: Grid | None = None
    intervals: Grid | None = None  # that the grid has no room for
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: int = 1  # how many columns, from the left, hold words
    runs: tuple[Runs, ...] = ()
    rounds: int = 0


def render(report: Report) -> str:
    parts = [_part(section, f"plot{number}") for number, section in enumerate(report.sections)]
    has_ratios = any(isinstance(section, Comparison) for section in report.sections)
    return page.template("report.html").render(report=report, parts=parts, has_ratios=has_ratios, most_open=MOST_OPEN)


def _part(section: Section, name: str) -> Part:
    if isinstance(section, Comparison):
        return _comparison(section, name)
    if isinstance(section, Shares):
        drawn = (plots.shares(section, name),) if section.whole > 0 else ()
        rows = tuple(markdown.shares_rows(section))
        return Part(section.title, "", section.notes, drawn, columns=markdown.SHARE_COLUMNS, rows=rows)
    if isinstance(section, Course):
        drawn = (plots.course(section, name),) if any(line.values for line in section.lines) else ()
        rows = tuple((line.name, *markdown.course_row(line.values, section.unit)) for line in section.lines)
        return Part(section.title, "", section.notes, drawn, columns=markdown.COURSE_COLUMNS, rows=rows)
    return Part(section.title, "", section.notes, columns=section.columns, rows=section.rows, words=section.words)


def _comparison(section: Comparison, name: str) -> Part:
    said = markdown.subtitle(section)
    shape = grid.of(section)
    return Part(
        section.title,
        f"{said[0].upper()}{said[1:]}.",
        section.notes,
        tuple(_ratios(section, name)),
        grid=shape,
        intervals=grid.every_interval(section) if shape.legend else None,
        runs=tuple(_runs(section, name)),
        rounds=section.rounds,
    )


def _ratios(section: Comparison, name: str) -> Iterator[str]:
    compared = [entry for case in section.cases for entry in case.entries if entry.ratio is not None]
    if 0 < len(compared) <= MOST_RATIOS:
        yield plots.ratios(section, name)
    elif compared and section.mean is not None:
        mean = Comparison(section.title, section.unit, section.baseline, (section.mean,), section.less_is_better)
        yield plots.ratios(mean, name)


def _runs(section: Comparison, name: str) -> Iterator[Runs]:
    for number, case in enumerate(section.cases):
        entries = [case.entry(own) for own in section.names if case.entry(own).values]
        if entries:
            factor, unit = grid.scale([value for entry in entries for value in entry.values], section.unit)
            rows = ((entry.name, *(f"{value / factor:.4g}" for value in entry.values)) for entry in entries)
            yield Runs(case.name, plots.runs(section, case, f"{name}case{number}"), unit, tuple(rows))
