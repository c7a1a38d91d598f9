"""A dossier's page: the answer first, then what it rests on, then what was not measured, and why."""

from __future__ import annotations

import statistics as medians
from collections.abc import Iterator, Sequence

from hakmem import comparison, words
from hakmem.dossier.rule import OTHER_OUTPUT, Judgement, Rule, conclude, judge, prose
from hakmem.ledger import Record
from hakmem.measure import METRICS as MEASURED
from hakmem.report.model import Report, Section, Table

METRICS = (
    "wall_s",
    "measured_s",
    "p99_s",
    "cold_s",
    "cpu_s",
    "peak_rss_bytes",
    "end_rss_bytes",
    "idle_bytes",
    "trimmed_rss_bytes",
    "minor_faults",
    "system_calls",
    "threads",
)
ADDED = ("threads", "system_calls", "minor_faults")
RUNS = 3  # in a round
UNMEASURED = "not measured: "  # begins a note of a record: what, without a colon in it, and why


def report(record: Record, rule: Rule, digest: str, kept: str | None) -> Report:
    judgements = judge(rule, record)
    _, answer = conclude(judgements)
    tables: list[Section] = [
        _verdicts(judgements),
        _rule(rule, digest),
        _takeover(record, rule),
    ]
    if added := _added(record, rule):
        tables.append(added)
    if left_out := tuple(_not_measured(record, rule)):
        tables.append(Table("Not measured", ("", "why"), left_out, words=2))
    present = [name for name in METRICS if name in record.metrics()]
    primary = rule.time if rule.time in present else present[0]
    each = rule.each if record.rounds >= rule.least_rounds else None  # else that of single intervals, as elsewhere
    figures = comparison.report(
        record, "", baseline=rule.incumbent, primary=primary, metrics=present, confidence=each, kept=kept
    )
    return Report(
        title=f"Another allocator for {' '.join(rule.commands[0].split())}?",
        command=record.command,
        sections=(*tables, *figures.sections),
        summary=(answer,),
        failures=figures.failures,
        notes=figures.notes,
        date=figures.date,
        machine=figures.machine,
        records=figures.records,
    )


def _verdicts(judgements: Sequence[Judgement]) -> Table:
    rows = tuple(
        (one.name, one.answer.value, words.ratio(one.time) if one.time else "-", one.why) for one in judgements
    )
    return Table("Answers", ("contestant", "answer", "time, mean over commands", "why"), rows, words=4)


def _rule(rule: Rule, digest: str) -> Table:
    notes = (f"Written on {rule.date}; SHA-256 of rule.json: {digest}",)
    return Table("The rule, fixed before the first run", ("", "is"), prose(rule), notes, words=2)


def _takeover(record: Record, rule: Rule) -> Table:
    """A run that did not prove whose malloc it ran on has no figure; so those that have one are proved."""
    rows = []
    for name, facts in record.variants.items():
        count = sum(len(record.values(case, name, rule.memory)) for case in record.cases)
        settings = " ".join(f"{key}={value}" for key, value in facts.settings.items())
        library = f"{facts.library} {(facts.sha256 or '')[:12]}" if facts.library else "the C library"
        rows.append((name, library, settings, _output(record, name), str(RUNS * count)))
    columns = ("contestant", "library, SHA-256", "settings", "output", "runs proved")
    files = "".join(f", {path}" for path in rule.outputs)
    compared = "the client's lines that are no latencies" if rule.client else "standard output"
    notes = (
        "In each run a witness in the process wrote down whose malloc it has.",
        f"Output is {compared}{files}; compared by SHA-256.",
    )
    return Table("Takeover and output", columns, tuple(rows), notes, words=4)


def _output(record: Record, name: str) -> str:
    if any(failure.variant == name and failure.reason.startswith(OTHER_OUTPUT) for failure in record.failures):
        return "another"
    if not any(series.variant == name for series in record.series):
        return "none"  # it failed
    return "not compared" if any(note.startswith(f"{UNMEASURED}output:") for note in record.notes) else "the same"


def _added(record: Record, rule: Rule) -> Table | None:
    """What the program has more, in medians, than on the incumbent."""
    found = [name for name in ADDED if name in record.metrics()]
    rows = []
    for case in record.cases:
        for name in rule.candidates:
            cells = [_more(record, case, name, rule.incumbent, metric) for metric in found]
            rows.append((case, name, *cells))
    columns = ("command", "contestant", *(MEASURED[metric].title for metric in found))
    return Table(f"Added to what there is on {rule.incumbent}", columns, tuple(rows), words=2) if found else None


def _more(record: Record, case: str, name: str, incumbent: str, metric: str) -> str:
    values, base = record.values(case, name, metric), record.values(case, incumbent, metric)
    return f"{round(medians.median(values) - medians.median(base)):+,}" if values and base else "-"


def _not_measured(record: Record, rule: Rule) -> Iterator[tuple[str, str]]:
    present = record.metrics()
    if rule.client is None:
        yield "99th percentile of the latency", "without --client COMMAND this is no service"
        yield "memory after idling", "the command ends by itself"
    elif "p99_s" not in present:
        yield "99th percentile of the latency", "the client has printed fewer than 100 latencies"
    if rule.client is not None and "idle_bytes" not in present:
        yield "memory after idling", "--idle 0"
    for name in record.variants:
        cases = [case for case in record.cases if record.values(case, name, rule.memory)]
        if any(not record.values(case, name, "trimmed_rss_bytes") for case in cases):
            why = "it has no function for it, or the program did not end in an orderly way"
            yield f"RSS after a trim, {name}", why
    for note in record.notes:
        if note.startswith(UNMEASURED):
            what, _, why = note.removeprefix(UNMEASURED).partition(": ")
            yield what, why
