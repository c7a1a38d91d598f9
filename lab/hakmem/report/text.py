"""A report for a terminal; plain lines of the same text, uncut and without colours, where the output is not one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from hakmem import foreign
from hakmem.report import grid, markdown
from hakmem.report.grid import Cell
from hakmem.report.model import Comparison, Course, Report, Section, Shares
from hakmem.statistics import Verdict

STYLES: dict[Verdict | None, str] = {
    Verdict.FASTER: "bold blue",
    Verdict.SLOWER: "bold yellow",
    Verdict.UNKNOWN: "dim",
    Verdict.UNDECIDED: "dim",
}
GAP = 2
ENDLESS = 100_000  # columns of an output that is no terminal


def write(report: Report, file: TextIO) -> None:
    console = Console(file=file, highlight=False)
    if console.is_terminal:
        _report(console, report)
        return
    lines = io.StringIO()
    _report(Console(file=lines, highlight=False, width=ENDLESS, no_color=True), report)
    file.writelines(f"{line.rstrip()}\n" for line in lines.getvalue().splitlines())


def _report(console: Console, report: Report) -> None:
    _print(console, f"[bold]{escape(report.title)}[/]")
    for line in report.summary:
        _print(console, escape(line))
    for failure in report.failures:
        _print(console, f"[bold red]failed:[/] {escape(failure)}")
    for section in report.sections:
        _print(console, "")
        _section(console, section)
    for line in report.notes:
        _print(console, escape(line))
    facts = [*report.machine.values(), report.date]
    _print(console, "")
    _print(console, "[dim]" + escape("; ".join(fact for fact in facts if fact)) + "[/]")
    for record in report.records:
        _print(console, f"[dim]record {escape(record)}[/]")


def _print(console: Console, markup: str) -> None:
    console.print(foreign.lines(markup), soft_wrap=True)


def _section(console: Console, section: Section) -> None:
    said = markdown.subtitle(section)
    _print(console, f"[bold]{escape(section.title)}[/]" + (f"[dim]: {escape(said)}[/]" if said else ""))
    if isinstance(section, Comparison):
        found = grid.of(section)
        _table(console, found.columns, found.all_rows(), found.words, found.mean is not None)
        if found.legend:
            _print(console, f"[dim]{escape(found.legend)}[/]")
    elif isinstance(section, Course):
        rows = [(line.name, *markdown.course_row(line.values, section.unit)) for line in section.lines]
        _table(console, markdown.COURSE_COLUMNS, [tuple(map(Cell, row)) for row in rows], 1)
    elif isinstance(section, Shares):
        _shares(console, section)
    else:
        _table(console, section.columns, [tuple(map(Cell, row)) for row in section.rows], section.words)
    for note in section.notes:
        _print(console, escape(note))


BAR = 40  # characters of a bar of the whole
EIGHTHS = ("", *(chr(0x2590 - eighth) for eighth in range(1, 8)))  # of a character, from the left
GROUPS = ("blue", "cyan", "yellow")


def _shares(console: Console, section: Shares) -> None:
    table = RichTable(box=None, show_edge=False, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    for number in range(4):
        table.add_column(justify="right" if number in (1, 2) else "left", no_wrap=True)
    looks = [look for share in section.shares for look in (share, *[None] * len(share.parts))]
    for row, share in zip(markdown.shares_rows(section), [*looks, None], strict=True):
        style = GROUPS[share.group % len(GROUPS)] if share else ""
        bar = _bar(abs(share.value) / section.whole) if share and section.whole else ""
        is_part = row[0].startswith(markdown.INDENT)
        cells = [Text(foreign.line(cell.replace(markdown.INDENT, "    ")), "dim" if is_part else "") for cell in row]
        table.add_row(*cells, Text(bar, style))
    console.print(table)


def _bar(share: float) -> str:
    eighths = round(min(share, 1) * BAR * 8)
    return "\N{FULL BLOCK}" * (eighths // 8) + EIGHTHS[eighths % 8]


def _table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[Cell]], words: int, mean: bool = False
) -> None:
    """In parts one below the other where it is wider than the terminal; each begins with the columns of words."""
    for part in _parts(columns, rows, words, console.width):
        lines = box.SIMPLE_HEAD if console.is_terminal else None  # which leave a space between columns by themselves
        padding = (0, GAP - 1 if lines else GAP, 0, 0)
        table = RichTable(box=lines, show_edge=False, pad_edge=False, padding=padding)
        for number in part:
            table.add_column(escape(columns[number]), justify="left" if number < words else "right", no_wrap=True)
        for row in rows:
            style = "bold" if mean and row is rows[-1] else ""
            cells = (Text(foreign.line(row[number].text), STYLES.get(row[number].verdict, "")) for number in part)
            table.add_row(*cells, style=style)
        console.print(table)


def _parts(columns: Sequence[str], rows: Sequence[Sequence[Cell]], words: int, width: int) -> Iterator[list[int]]:
    widths = [
        GAP + max(len(title), *(len(row[number].text) for row in rows)) if rows else GAP + len(title)
        for number, title in enumerate(columns)
    ]
    first = list(range(words))
    part, used = [*first], sum(widths[:words])
    for number in range(words, len(columns)):
        if part != first and used + widths[number] - GAP > width:
            yield part
            part, used = [*first], sum(widths[:words])
        part.append(number)
        used += widths[number]
    yield part
