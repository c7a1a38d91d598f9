"""A report as markdown, for an issue, a pull request or a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hakmem import words
from hakmem.report import grid
from hakmem.report.model import Comparison, Course, Report, Section, Shares


def render(report: Report) -> str:
    return "\n\n".join(_blocks(report)) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words_columns: int = 1) -> str:
    """Figures stand to the right, the first columns, of words, to the left."""
    rules = ["---" if number < words_columns else "---:" for number in range(len(columns))]
    lines = [columns, rules, *rows]
    return "\n".join("| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines)


def section(one: Section) -> Iterator[str]:
    """Its blocks, without a heading."""
    if isinstance(one, Comparison):
        found = grid.of(one)
        rows = [[cell.text for cell in row] for row in found.rows]
        if found.mean is not None:
            rows.append([f"**{cell.text}**" if cell.text else "" for cell in found.mean])
        yield table(found.columns, rows, found.words)
        if found.legend:
            yield found.legend
    elif isinstance(one, Course):
        rows = [[line.name, *course_row(line.values, one.unit)] for line in one.lines]
        yield table(COURSE_COLUMNS, rows)
    elif isinstance(one, Shares):
        yield table(SHARE_COLUMNS, shares_rows(one))
    else:
        yield table(one.columns, one.rows, one.words)
    yield from map(_one_line, one.notes)


COURSE_COLUMNS = ("", "first", "least", "most", "last")


def course_row(values: Sequence[float], unit: str) -> list[str]:
    """A line in words: its first, least, greatest and last value."""
    if not values:
        return [grid.NOTHING] * 4
    return [words.amount(value, unit) for value in (values[0], min(values), max(values), values[-1])]


SHARE_COLUMNS = ("", "amount", "share")


def shares_rows(one: Shares) -> list[tuple[str, ...]]:
    """Each share and, below it, its parts; at the end the whole."""
    rows = []
    for share in one.shares:
        rows.append((share.name, *_share(share.value, one)))
        rows += [(f"{INDENT}{name}", *_share(value, one)) for name, value in share.parts]
    return [*rows, ("together", words.amount(one.whole, one.unit), "")]


def _share(value: float, one: Shares) -> tuple[str, str]:
    sign = "-" if value < 0 else ""
    return sign + words.amount(abs(value), one.unit), f"{value / one.whole:.1%}" if one.whole else grid.NOTHING


INDENT = "\N{NO-BREAK SPACE}" * 4  # that HTML and markdown keep


def subtitle(one: Section) -> str:
    """What a reader must know to read the figures."""
    if not isinstance(one, Comparison):
        return ""
    better = "less is better" if one.less_is_better else "more is better"
    rounds = f"medians of {one.rounds} rounds" if one.rounds != 1 else "one round"
    compared = any(entry.ratio for case in one.cases for entry in case.entries)
    return "; ".join([better, rounds, *([f"ratios to {one.baseline}"] if compared else [])])


def _blocks(report: Report) -> Iterator[str]:
    yield f"# {_one_line(report.title)}"
    if report.summary:
        yield "\n".join(f"- {_one_line(line)}" for line in report.summary)
    if report.failures:
        yield "**Failed**"
        yield "\n".join(f"- {_one_line(line)}" for line in report.failures)
    for one in report.sections:
        yield f"## {_one_line(one.title)}"
        if said := subtitle(one):
            yield f"{said[0].upper()}{said[1:]}."
        yield from section(one)
    yield from map(_one_line, report.notes)
    facts = [f"{name}: {value}" for name, value in report.machine.items()]
    if report.date:
        facts.append(f"date: {report.date}")
    if report.records:
        facts.append(f"records: {', '.join(report.records)}")
    if facts:
        yield "\n".join(f"- {fact}" for fact in facts)
    yield f"```\n{report.command}\n```"


def escape(cell: str) -> str:
    """As text in a row of a table."""
    return _one_line(cell).replace("\\", "\\\\").replace("|", "\\|")


def _one_line(text: str) -> str:
    """A name, of a program say, may have several."""
    return text.replace("\n", " ")
