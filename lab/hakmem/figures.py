"""Figures and tables of the documentation: what they say is computed from records, never typed.

A figure is an expression over one record:

    median(CASE, VARIANT, METRIC)                 45.6 MiB
    ratio(CASE, CANDIDATE, BASELINE, METRIC)      1.065 (1.012-1.090): paired by round, with its 95 % interval
    change(CASE, CANDIDATE, BASELINE, METRIC)     the same ratio as +6.5 % (+1.2 to +9.0 %)

Names with spaces stand in quotes. CASE "*" is all cases of the record, of which ratios are those of geometric means.
BASELINE `best` is the best of all other allocators in that case (the ceiling is none), `best(A, B)` of these.
`.estimate`, `.low` and `.high` behind an expression take one number of it. In a table, the name `case` is the case of
the row.

In a table a column holds figures that were measured or values that somebody expects, and says which; a model that
holds both in one column doesn't exist.
"""

from __future__ import annotations

import ast
import statistics as medians
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from hakmem import comparison, statistics, words
from hakmem.errors import LabError
from hakmem.ledger import Expected, Record
from hakmem.measure import CEILING
from hakmem.statistics import Interval, Verdict

ARGUMENTS = {
    "median": ("CASE", "VARIANT", "METRIC"),
    "ratio": ("CASE", "CANDIDATE", "BASELINE", "METRIC"),
    "change": ("CASE", "CANDIDATE", "BASELINE", "METRIC"),
}
BOUNDED = "Ratios are paired by round, with their 95 % intervals; bold is what these show to be worse."
UNBOUNDED = "Ratios are paired by round, of which there are too few for intervals; bold is what was worse in every one."
Find = Callable[[str], Record]  # by id; raises LabError when there is none that may be cited


class FigureError(LabError):
    """An expression or a table that says nothing, or asks for what its record doesn't have."""


@dataclass(frozen=True)
class Measured:
    """A figure of a record."""

    record: str
    function: Literal["median", "ratio", "change"]
    cases: tuple[str, ...]  # several: their geometric mean; *: all of the record
    variant: str
    rivals: tuple[str, ...] | None  # the baseline: the best of these; none named: of all others
    metric: str
    part: Literal["estimate", "low", "high"] | None = None


@dataclass(frozen=True)
class MeasuredColumn:
    title: str
    cells: tuple[Measured, ...]


@dataclass(frozen=True)
class ExpectedColumn:
    title: str
    cells: tuple[Expected, ...]


@dataclass(frozen=True)
class Table:
    """Every column has a cell for each row."""

    rows: tuple[str, ...]
    columns: tuple[MeasuredColumn | ExpectedColumn, ...]

    def measured(self) -> Iterator[Measured]:
        return (cell for column in self.columns if isinstance(column, MeasuredColumn) for cell in column.cells)

    def records(self) -> list[str]:
        return list(dict.fromkeys(cell.record for cell in self.measured()))

    @property
    def sources(self) -> list[str]:
        """Of what is expected."""
        return [column.cells[0].source for column in self.columns if isinstance(column, ExpectedColumn)]


# ---- Reading what a document asks for --------------------------------------------------------------------------------


def parse(text: str, record: str, row: tuple[str, ...] | None = None) -> Measured:
    """The figure that an expression asks for. `row`: the cases that the name `case` stands for."""
    usage = "expected " + ", ".join(f"{name}({', '.join(words)})" for name, words in ARGUMENTS.items())
    try:
        tree: ast.expr = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise FigureError(f"not a figure: {text.strip()!r}; {usage}") from None
    part = None
    if isinstance(tree, ast.Attribute) and tree.attr in ("estimate", "low", "high"):
        part, tree = tree.attr, tree.value
    called = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords
    if not called or tree.func.id not in ARGUMENTS or len(tree.args) != len(ARGUMENTS[tree.func.id]):  # type: ignore[attr-defined]
        if isinstance(tree, (ast.Constant, ast.UnaryOp)):
            raise FigureError(f"a value that no record backs, in a place for measured figures: {text.strip()}; {usage}")
        raise FigureError(f"not a figure: {text.strip()!r}; {usage}")
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    first, *rest, metric = tree.args
    if isinstance(first, ast.Name) and first.id == "case":
        if row is None:
            raise FigureError(f"{text.strip()!r}: `case` has a meaning in tables only; name one")
        cases = row
    else:
        cases = (_name(first),)
    return Measured(
        record=record,
        function=tree.func.id,  # type: ignore[arg-type]
        cases=cases,
        variant=_name(rest[0]),
        rivals=_rivals(rest[1]) if len(rest) > 1 else None,
        metric=_name(metric),
        part=part,  # type: ignore[arg-type]
    )


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise FigureError(f"not a name: {ast.unparse(node)}; names with spaces stand in quotes")


def _rivals(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "best" and node.args:
        return tuple(_name(argument) for argument in node.args)
    name = _name(node)
    return () if name == "best" else (name,)


class _ExpectedDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: Annotated[str, msgspec.Meta(min_length=1)]
    unit: str
    amounts: dict[str, float]


class _TableDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: str
    rows: Annotated[dict[str, str | list[str]], msgspec.Meta(min_length=1)]
    columns: Annotated[dict[str, str | float | _ExpectedDefinition], msgspec.Meta(min_length=1)]


def parse_table(definition: object) -> Table:
    """A table from its definition: `record`, `rows` (title = case, or a list of cases) and `columns` (title =
    expression, or what is expected of each row: source, unit, amounts)."""
    try:
        definition = msgspec.convert(definition, _TableDefinition)
    except msgspec.ValidationError as error:
        raise FigureError(f"the table's definition: {error}") from None
    columns: list[MeasuredColumn | ExpectedColumn] = []
    for title, column in definition.columns.items():
        if isinstance(column, _ExpectedDefinition):
            columns.append(_expected_column(title, column, list(definition.rows)))
            continue
        if isinstance(column, float):
            raise FigureError(f"an expected value in the measured column {title!r}: {column:g}")
        cases = [(row,) if isinstance(row, str) else tuple(row) for row in definition.rows.values()]
        columns.append(MeasuredColumn(title=title, cells=tuple(parse(column, definition.record, row) for row in cases)))
    return Table(rows=tuple(definition.rows), columns=tuple(columns))


def _expected_column(title: str, column: _ExpectedDefinition, rows: list[str]) -> ExpectedColumn:
    unknown = [row for row in column.amounts if row not in rows]
    missing = [row for row in rows if row not in column.amounts]
    if unknown or missing:
        differing = ", ".join([*unknown, *missing])
        raise FigureError(f"the expected column {title!r} needs one amount for each row; differs: {differing}")
    cells = (Expected(what=row, amount=column.amounts[row], unit=column.unit, source=column.source) for row in rows)
    return ExpectedColumn(title=title, cells=tuple(cells))


# ---- Computing
# ---------------------------------------------------------------------------------------------------------


def text(figure: Measured, find: Find) -> str:
    """As the documentation prints it."""
    record = find(figure.record)
    if figure.function == "median":
        if len(_cases(record, figure)) != 1 or figure.part:
            raise FigureError("median() is of one case, and has no .estimate, .low or .high")
        values = _values(record, figure.cases[0], figure.variant, figure.metric)
        return words.amount(medians.median(values), comparison.metric(record, figure.metric).unit)
    interval = ratio_of(record, figure)
    is_change = figure.function == "change"
    if figure.part:
        number: float = getattr(interval, figure.part)
        if not 0 < number < float("inf"):
            raise FigureError(f"{record.id}: {record.rounds} rounds are too few for an interval")
        shown = words.places(interval, number)
        return f"{(number - 1) * 100:+.{shown - 2}f} %" if is_change else f"{number:.{shown}f}"
    return words.change(interval) if is_change else words.ratio(interval)


def _cases(record: Record, figure: Measured) -> list[str]:
    return list(record.cases) if figure.cases == ("*",) else list(figure.cases)


def _values(record: Record, case: str, variant: str, metric: str) -> list[float]:
    for what, name, known in (("case", case, record.cases), ("variant", variant, record.variants)):
        if name not in known:
            raise FigureError(f"{record.id} has no {what} {name!r}; it has {', '.join(known)}")
    if case in record.short_cases:
        raise FigureError(f"{case!r} is of sanity size in {record.id}: it proves that it ran, nothing else")
    if metric not in record.metrics():
        raise FigureError(f"{record.id} has no metric {metric!r}; it has {', '.join(record.metrics())}")
    values = record.values(case, variant, metric)
    if not values:
        raise FigureError(f"{record.id} has no {metric} of {case!r} under {variant!r}")
    return values


Pairs = dict[str, tuple[list[float], list[float]]]  # per case: own values and the rival's, round by round


def _pairs(record: Record, figure: Measured) -> Pairs:
    cases = _cases(record, figure)
    own = {case: _values(record, case, figure.variant, figure.metric) for case in cases}
    assert figure.rivals is not None
    rival = figure.rivals[0] if len(figure.rivals) == 1 else _best(record, figure, cases)
    theirs = {case: _values(record, case, rival, figure.metric) for case in cases}
    if min(min(values) for values in [*own.values(), *theirs.values()]) <= 0:
        raise FigureError(f"{record.id}: {figure.metric} has values that no ratio can be made of")
    return {case: (own[case], theirs[case]) for case in cases}


def ratio_of(record: Record, figure: Measured) -> Interval:
    return statistics.geometric_mean_ratio(_pairs(record, figure), blocks=record.blocks)


def _is_worse(record: Record, figure: Measured) -> bool:
    """What the interval shows; where the rounds are too few for one, what every round says."""
    less_is_better = comparison.metric(record, figure.metric).less_is_better
    pairs = _pairs(record, figure)
    found = statistics.verdict(statistics.geometric_mean_ratio(pairs, blocks=record.blocks), less_is_better)
    if found is not Verdict.UNDECIDED:
        return found is Verdict.SLOWER
    rounds = [
        statistics.geometric_mean([own[i] / theirs[i] for own, theirs in pairs.values()]) for i in range(record.rounds)
    ]
    return min(rounds) > 1 if less_is_better else max(rounds) < 1


def _best(record: Record, figure: Measured, cases: list[str]) -> str:
    """The rival with the best geometric mean of medians among those that have figures in all these cases."""
    means: dict[str, float] = {}
    for name in figure.rivals or [name for name in record.variants if name not in (figure.variant, CEILING)]:
        if name not in record.variants:
            raise FigureError(f"{record.id} has no variant {name!r}; it has {', '.join(record.variants)}")
        found = [record.values(case, name, figure.metric) for case in cases]
        if all(values and min(values) > 0 for values in found):
            means[name] = statistics.geometric_mean([medians.median(values) for values in found])
    if not means:
        raise FigureError(f"{record.id} has nobody to compare {figure.variant!r} with by {figure.metric}")
    less_is_better = comparison.metric(record, figure.metric).less_is_better
    return (min if less_is_better else max)(means, key=lambda name: means[name])


def markdown(table: Table, find: Find, link: Callable[[str], str]) -> str:
    """The table and, below it, where it comes from. `link`: from a record's id to where a reader finds it."""
    titles = [
        f"{column.title} (expected)" if isinstance(column, ExpectedColumn) else column.title for column in table.columns
    ]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for number, row in enumerate(table.rows):
        shown = [_cell(column.cells[number], find) for column in table.columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    lines += ["", *(f"{provenance(find(name))} ([record]({link(name)}))." for name in table.records())]
    functions = {cell.function for cell in table.measured()}
    if functions - {"median"}:
        fewest = min(find(name).rounds for name in table.records())
        lines.append(BOUNDED if fewest >= statistics.minimum_rounds() else UNBOUNDED)
    for column in table.columns:
        if isinstance(column, ExpectedColumn):
            lines.append(f"Nobody measured {column.title!r}: {column.cells[0].source}.")
    return "\n".join(lines)


def _cell(cell: Measured | Expected, find: Find) -> str:
    if isinstance(cell, Expected):
        return words.amount(cell.amount, cell.unit)
    if _has_failed(find(cell.record), cell):
        return "failed"
    shown = text(cell, find)
    if cell.function == "median":
        return shown
    return f"**{shown}**" if _is_worse(find(cell.record), cell) else shown


def _has_failed(record: Record, cell: Measured) -> bool:
    named = {cell.variant, *(cell.rivals or ())}
    return any(failed.variant in named and failed.case in _cases(record, cell) for failed in record.failures)


def provenance(record: Record) -> str:
    machine = record.machine
    where = f"{machine.cpu}, {words.cores(machine)}, kernel {machine.kernel}"
    if record.machines:
        where = words.machines(record.machines.values())
    return f"{record.rounds} interleaved rounds on {record.date:%Y-%m-%d}; {where}"


def lookup(records: Mapping[str, Record]) -> Find:
    """Finds among these; whether a record may be cited is for others to say."""

    def find(name: str) -> Record:
        if name not in records:
            raise FigureError(f"there is no record {name}")
        return records[name]

    return find
