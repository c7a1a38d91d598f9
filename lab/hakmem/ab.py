"""A/B: the same work under two settings of one build, or under two builds, decided by rounds that take turns.

A side is a word: `-` (nothing set), settings such as `PREFAULT=1,STATS=json:FILE`, `library=PATH` for another build.
A matrix is every combination of several switches, because gains do not add up: its effects are those of each switch
over all states of the others, and of switches together beyond what they do apart.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hakmem import catalogue, comparison, process, settings, statistics, suite, words
from hakmem.allocators import OWN, Allocator, hakmem
from hakmem.errors import LabError
from hakmem.ledger import Record, VariantFacts
from hakmem.measure import Case, CommandCase, Metric, Variant
from hakmem.report.model import Report, Section, Table
from hakmem.statistics import Decision, Effect, Interval

FEWEST_ROUNDS = 10  # for a decision
FEWEST_COUNTED = 6  # of instructions, which vary little; an interval needs six
OTHERS = ("cpu_s", "mean_rss_bytes", "minor_faults")  # shown, without a decision
MEMORY = "peak_rss_bytes"
COUNT = "instructions"
OPERATION = Metric("operation_s", "time per operation", "s")


# ---- What is compared ------------------------------------------------------------------------------------------------


def side(name: str, word: str) -> Variant:
    """The variant that a word describes. LabError unless the library knows each setting and takes its value."""
    library = hakmem()
    pairs: list[str] = []
    for part in [] if word == "-" else re.split(r",(?=\w+=)", word):
        key, equals, value = part.partition("=")
        if not equals:
            raise LabError(f"{part!r}: expected `-`, or NAME=VALUE and library=PATH with commas between")
        if key == "library":
            if not Path(value).is_file():
                raise LabError(f"library={value}: there is no such file")
            library = Allocator(OWN, Path(value).resolve())
            settings.expect_callers(Path(value).resolve())  # an older one may ignore what the other side takes
        else:
            pairs.append(part.removeprefix(settings.PREFIX))
    assert library.library is not None
    return Variant(name, library, settings.parse(pairs, library.library))


def matrix(words: Sequence[str]) -> tuple[list[Variant], list[str]]:
    """A variant for every combination of switches NAME=VALUE,VALUE, and the names of the switches. In the order of the
    variants the last switch changes first."""
    switches: list[tuple[str, list[str]]] = []
    for word in words:
        name, equals, values = word.partition("=")
        pair = values.split(",")
        if not equals or len(pair) != 2 or pair[0] == pair[1]:
            raise LabError(f"{word!r}: expected a switch with its two values, such as PREFAULT=0,1")
        switches.append((name.removeprefix(settings.PREFIX), pair))
    names = [name for name, _ in switches]
    if len(set(names)) != len(names):
        raise LabError(f"a switch stands twice in the matrix: {', '.join(names)}")
    combinations = itertools.product(*([f"{name}={value}" for value in pair] for name, pair in switches))
    return [side(" ".join(each), ",".join(each)) for each in combinations], names


def cases(words: Sequence[str], *, sanity: bool) -> list[Case]:
    """After the word `bench`, cases of `hakmem bench` by name or group, several with commas between them; a benchmark
    or a group of the suite goes without the word; else a command."""
    size = "sanity" if sanity else "full"
    if words[:1] == ("bench",):
        return catalogue.choose([" ".join(words[1:])], size)[0]
    if suite.is_known(" ".join(words)):
        return [*suite.resolve([" ".join(words)], size)]
    if not words:
        raise LabError("nothing to run: expected `-- COMMAND [ARGUMENT...]` or the name of a benchmark")
    if words[0].startswith("-"):
        raise LabError(f"{words[0]}: expected a command; options stand before it")
    process.expect_command(words)
    return [CommandCase(tuple(words))]


# ---- What came of it -------------------------------------------------------------------------------------------------


def time_of(record: Record, case: str) -> str:
    """The metric that tells how fast a case was: instructions where they were counted, time per operation where it
    counts its operations, else wall time."""
    if all(record.values(case, variant, COUNT) for variant in record.variants):
        return COUNT
    counted = all(record.values(case, variant, "operations_per_s") for variant in record.variants)
    return OPERATION.name if counted else "wall_s"


def _metric(record: Record, name: str) -> Metric:
    return OPERATION if name == OPERATION.name else comparison.metric(record, name)


def _figures(record: Record, case: str, variant: str, of: Metric) -> Sequence[float]:
    """Less is better in all of them, so that every ratio reads the same way."""
    if of is OPERATION:
        return [1 / value for value in record.values(case, variant, "operations_per_s")]
    return record.values(case, variant, of.name)


def fewest_rounds(record: Record, case: str) -> int:
    """For a decision of its time."""
    return FEWEST_COUNTED if time_of(record, case) == COUNT else FEWEST_ROUNDS


@dataclass(frozen=True)
class Decided:
    """One metric of one case: B, the second variant, against A, the first."""

    case: str
    metric: Metric
    ratio: Interval | None  # None: values of 0, of which there are no ratios
    decision: Decision | None  # None: this metric is shown only


def decide(record: Record, threshold: float) -> list[Decided]:
    """Time and memory each have a decision of their own, with fewer rounds than it takes none of them."""
    a, b = record.variants
    found: list[Decided] = []
    for case in record.cases:
        time, fewest = time_of(record, case), fewest_rounds(record, case)
        for name in (time, MEMORY, *OTHERS):
            metric = _metric(record, name)
            values_a, values_b = (_figures(record, case, variant, metric) for variant in (a, b))
            if not values_a or not values_b:
                continue
            ratio = comparison.compare(values_b, values_a)
            decision = None
            if ratio is not None and name in (time, MEMORY):
                decision = statistics.decision(ratio, threshold)
                decision = decision if record.rounds >= fewest else Decision.UNDECIDED
            found.append(Decided(case, metric, ratio, decision))
    return found


def effects(record: Record, case: str, metric: Metric, switches: Sequence[str]) -> list[Effect]:
    """Of a matrix: the variants of the record are its combinations, in the order of matrix(). The intervals hold all
    together. None where a value is missing or 0."""
    keys = itertools.product((0, 1), repeat=len(switches))
    levels = {key: _figures(record, case, variant, metric) for key, variant in zip(keys, record.variants, strict=True)}
    if not all(values and min(values) > 0 for values in levels.values()):
        return []
    return statistics.effects(levels, switches, confidence=statistics.family_confidence(len(levels) - 1))


# ---- As a report -----------------------------------------------------------------------------------------------------


def report(record: Record, threshold: float, switches: Sequence[str] = (), kept: str | None = None) -> Report:
    """Of a matrix if there are switches, else of A and B."""
    sections: list[Section] = []
    summary: list[str] = []
    decided = [] if switches else decide(record, threshold)
    for case in record.cases:
        metrics = [_metric(record, name) for name in (time_of(record, case), MEMORY)]
        metrics = [one for one in metrics if any(_figures(record, case, name, one) for name in record.variants)]
        if switches:
            sections += [_effects_table(record, case, metric, switches) for metric in metrics]
        else:
            mine = [one for one in decided if one.case == case]
            few = words.few_rounds(record.rounds, fewest_rounds(record, case))
            said = {decision: decision.value for decision in Decision} | {Decision.UNDECIDED: few, None: ""}
            rows = tuple((one.metric.title, _ratio(one.ratio), said[one.decision]) for one in mine)
            head = ("", "ratio (95 %)", f"at +-{words.share(threshold)}")
            sections.append(Table(f"{case}: b / a", head, rows, ("Ratios below 1: b takes less.",)))
            summary += [f"{case}, {one.metric.title}: {said[one.decision]}" for one in mine if one.decision]
        sections += [_values_table(record, case, metric) for metric in metrics]
    title = "matrix of " + ", ".join(switches) if switches else "A/B"
    base = comparison.report(record, title, primary=COUNT if COUNT in record.metrics() else "wall_s", kept=kept)
    notes = [f"{name}: {_described(facts)}" for name, facts in record.variants.items()]
    if not switches and len(record.cases) > 1:
        notes.append(comparison.BY_CHANCE)
    return replace(base, sections=tuple(sections), summary=tuple(summary), notes=(*notes, *base.notes))


def _effects_table(record: Record, case: str, metric: Metric, switches: Sequence[str]) -> Table:
    found = effects(record, case, metric, switches)
    rows = tuple((" x ".join(one.factors), words.ratio(one.interval)) for one in found)
    note = "Below 1 is less of it. Of several switches: what they do together beyond what they do apart."
    return Table(f"{case}: effects on {metric.title}", ("switch", "factor (95 %, all together)"), rows, (note,))


def _values_table(record: Record, case: str, metric: Metric) -> Table:
    rows: list[tuple[str, ...]] = []
    for variant in record.variants:
        if values := _figures(record, case, variant, metric):
            found = statistics.summary(values)
            shown = [words.amount(value, metric.unit) for value in (found.mean, found.median)]
            deviation = words.amount(found.standard_deviation, metric.unit) if len(values) > 1 else "-"
            ends = (words.amount(end, metric.unit) for end in (found.interval.low, found.interval.high))
            interval = " to ".join(ends) if found.interval.is_bounded else "-"
            raw = " ".join(words.amount(value, metric.unit).replace(" ", "") for value in values)
            rows.append((variant, *shown, deviation, interval, raw))
    columns = ("", "mean", "median", "standard deviation", "median, 95 %", "values")
    return Table(f"{case}: {metric.title}", columns, tuple(rows))


def _ratio(interval: Interval | None) -> str:
    return words.ratio(interval) if interval else "-"


def _described(facts: VariantFacts) -> str:
    return " ".join([facts.library or "", *(f"{name}={value}" for name, value in facts.settings.items())])
