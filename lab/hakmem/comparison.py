"""From a record's raw values to a report: medians, ratios with intervals, verdicts.

Works on records only, so that a report can be made again from what was kept. One metric of a comparison is primary,
and each of its verdicts stands alone: where there are several, the report says that one may be by chance. The intervals
of the other metrics are widened for their number, so that all their verdicts raise no more false alarms than one does.
A suite's verdict is that on the geometric mean; its ratios, and those of single cases, are widened for the number of
allocators. Where the rounds are too few for intervals so wide to have ends, they stay those of single verdicts, and the
report says which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hakmem import process, statistics, words
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.measure import METRICS, Metric
from hakmem.report.model import Case, Comparison, Entry, Report, Section, Table
from hakmem.statistics import CONFIDENCE, Interval, Verdict

COMPARED = ("wall_s", "cpu_s", "peak_rss_bytes", "minor_faults")

BUSY, OTHERS_BUSY = 0.75, 0.25  # of the cores: what was waiting before, and what others had meanwhile

Figure = Callable[[str, str], Sequence[float]]  # of a case and a variant; empty: there is none


def metric(record: Record, name: str) -> Metric:
    """A metric of the table, or a benchmark's own figure, of which less is better."""
    if name in METRICS:
        return METRICS[name]
    unit = next((series.unit for series in record.series if series.metric == name), "")
    return Metric(name, name.replace("_", " "), unit)


def choose_baseline(record: Record, wanted: str | None) -> str:
    """The variant that the others are compared with: glibc where it takes part, unless another is wanted."""
    if wanted is not None and wanted not in record.variants:
        raise LabError(f"no {wanted!r} to compare with; there are {', '.join(record.variants)}")
    return wanted or ("glibc" if "glibc" in record.variants else next(iter(record.variants)))


def compare(
    values: Sequence[float], base: Sequence[float], confidence: float = CONFIDENCE, blocks: Sequence[str] = ()
) -> Interval | None:
    """None where a ratio says nothing: no partner, or zeros (no major faults at all)."""
    if len(values) != len(base) or not values or min(*values, *base) <= 0:
        return None
    return statistics.ratio(values, base, confidence=confidence, blocks=blocks)


def section(
    record: Record,
    of: Metric,
    figure: Figure,
    baseline: str,
    *,
    cases: Iterable[str] | None = None,
    confidence: float = CONFIDENCE,
    mean: bool = False,
    notes: tuple[str, ...] = (),
) -> Comparison | None:
    """One metric of all cases that have it, or None. `mean`: with the geometric mean over the cases in which all
    variants have figures."""
    found = [_case(record, case, of, figure, baseline, confidence) for case in cases or record.cases]
    found = [case for case in found if any(entry.values for entry in case.entries)]
    if not found:
        return None
    average, left_out = _mean(record, found, of, baseline, confidence) if mean and len(found) > 1 else (None, ())
    return Comparison(of.title, of.unit, baseline, tuple(found), of.less_is_better, average, notes + left_out)


def _case(record: Record, name: str, of: Metric, figure: Figure, baseline: str, confidence: float) -> Case:
    base = figure(name, baseline)
    entries: list[Entry] = []
    for variant in record.variants:
        values = tuple(figure(name, variant))
        ratio = compare(values, base, confidence, record.blocks) if variant != baseline else None
        verdict = statistics.verdict(ratio, of.less_is_better) if ratio else None
        entries.append(Entry(variant, values, ratio, verdict))
    return Case(name, tuple(entries))


def _mean(
    record: Record, cases: Sequence[Case], of: Metric, baseline: str, confidence: float
) -> tuple[Case | None, tuple[str, ...]]:
    """Of each variant over the cases in which it and the baseline have figures; those with fewer cases are told."""
    entries: list[Entry] = [Entry(baseline)]
    notes: list[str] = []
    for variant in dict.fromkeys(entry.name for case in cases for entry in case.entries if entry.name != baseline):
        shared = [case for case in cases if case.entry(variant).ratio is not None]
        if not shared:
            continue
        pairs = {case.name: (case.entry(variant).values, case.entry(baseline).values) for case in shared}
        ratio = statistics.geometric_mean_ratio(pairs, confidence=confidence, blocks=record.blocks)
        entries.append(Entry(variant, (), ratio, statistics.verdict(ratio, of.less_is_better)))
        if len(shared) < len(cases):
            notes.append(f"{variant}: mean over {len(shared)} of {len(cases)} cases")
    return (Case("geometric mean", tuple(entries)) if len(entries) > 1 else None), tuple(notes)


# ---- A user's command
# --------------------------------------------------------------------------------------------------


def report(
    record: Record,
    title: str,
    *,
    baseline: str | None = None,
    primary: str = "wall_s",
    metrics: Iterable[str] = COMPARED,
    confidence: float | None = None,
    kept: str | None = None,
) -> Report:
    """The primary metric first, with the sentence that answers the question; then the others. `confidence` is that of
    each interval where somebody else has said how many there are."""
    chosen = choose_baseline(record, baseline)
    present = record.metrics()
    if primary not in present:
        raise LabError(f"no figure {primary!r} to compare by; there are {', '.join(present)}")
    others = [name for name in dict.fromkeys(metrics) if name != primary and name in present]
    several = len(record.cases) > 1
    verdicts = (len(record.variants) - 1) * (len(record.cases) + several)  # on a metric, with that on the mean
    of_others = len(others) * verdicts
    wider = confidence or _each_of(of_others, record.rounds)
    sections: list[Section] = []
    for name in [primary, *others]:
        alone = name == primary and confidence is None
        each = CONFIDENCE if alone else wider
        note = holding(each) if confidence else _note(each, verdicts if alone else of_others)
        notes = () if alone and verdicts <= 1 else (note,)
        found = section(
            record,
            metric(record, name),
            _series(record, name),
            chosen,
            confidence=each,
            mean=several,
            notes=notes,
        )
        if found:
            sections.append(found)
    answer = _answer(sections[0]) if isinstance(sections[0], Comparison) else ()
    answer += _rest([one for one in sections[1:] if isinstance(one, Comparison)]) + _busy(record)
    by_machine = _by_machine(record, metric(record, primary), _series(record, primary), chosen)
    return _report(record, title, [*sections, *by_machine], answer, kept)


def _each_of(verdicts: int, rounds: int) -> float:
    """The confidence of each of so many verdicts; that of a single one where the rounds are too few for the family."""
    each = statistics.family_confidence(max(1, verdicts))
    return each if statistics.minimum_rounds(each) <= rounds else CONFIDENCE


def _note(each: float, verdicts: int) -> str:
    """With what each interval of so many verdicts holds."""
    return BY_CHANCE if each == CONFIDENCE and verdicts > 1 else holding(each)


def holding(confidence: float) -> str:
    share = f"{confidence:.1%}".replace(".0%", "%")
    return f"Each interval holds with {share}."


BY_CHANCE = f"{holding(CONFIDENCE)} So of many verdicts one may be by chance."


def _series(record: Record, name: str) -> Figure:
    return lambda case, variant: record.values(case, variant, name)


def _by_machine(record: Record, of: Metric, figure: Figure, baseline: str) -> list[Table]:
    """The same ratios, of each machine's rounds alone. Where they differ, the answer depends on the machine."""
    others = [name for name in record.variants if name != baseline]
    rows: list[tuple[str, ...]] = []
    for name, facts in record.machines.items():
        rounds = [number for number, block in enumerate(record.blocks) if block == name]
        for case in record.cases:
            every = {one: figure(case, one) for one in record.variants}
            own = {one: [values[number] for number in rounds] for one, values in every.items() if values}
            found = [compare(own.get(other, []), own.get(baseline, [])) for other in others]
            ratios = [words.ratio(ratio) if ratio else "-" for ratio in found]
            rows.append((name, facts.cpu, case, str(len(rounds)), *ratios))
    columns = ("machine", "processor", "case", "rounds", *others)
    holds = _note(CONFIDENCE, len(rows) * len(others))
    note = f"Ratios to {baseline}, of each machine's rounds alone. {holds}"
    title = f"{of.title.partition(':')[0]} by machine"
    return [Table(title, columns, tuple(rows), (note,), words=3)] if rows else []


def _answer(primary: Comparison) -> tuple[str, ...]:
    """One sentence per allocator and case on the metric that decides."""
    found: list[str] = []
    for case in primary.cases:
        where = f"{case.name}: " if len(primary.cases) > 1 else ""
        for entry in case.entries:
            if entry.ratio is None or entry.verdict is None:
                continue
            said = words.verdict(entry.verdict, primary.rounds)
            comparing = f"{entry.name} against {primary.baseline}, {primary.title}"
            found.append(f"{where}{comparing}: {said}, ratio {words.ratio(entry.ratio)}")
    return tuple(found)


def _rest(others: Sequence[Comparison]) -> tuple[str, ...]:
    """One sentence per allocator and case on all other metrics, as far as there is a verdict."""
    told: dict[tuple[str, str], list[str]] = {}
    for other in others:
        for case in other.cases:
            for entry in case.entries:
                if entry.ratio and entry.verdict and entry.verdict is not Verdict.UNDECIDED:
                    said = f"{other.title} {words.SAYS[entry.verdict]}, {words.ratio(entry.ratio)}"
                    told.setdefault((case.name, entry.name), []).append(said)
    several = len({case for case, _ in told}) > 1
    return tuple(
        f"{f'{case}: ' if several else ''}{name}, other figures: {'; '.join(said)}"
        for (case, name), said in told.items()
    )


def _busy(record: Record) -> tuple[str, ...]:
    """Where it isn't known what others had meanwhile, the load before the first run is theirs."""
    facts, others = record.machine, record.others_busy
    if others is not None and others > facts.cores * OTHERS_BUSY:
        how = f"they had {others:.1f} of {words.cores(facts)}, or what the command had left running"
    elif others is None and facts.load[0] > facts.cores * BUSY:
        how = f"load {facts.load[0]:.1f} on {words.cores(facts)}"
    else:
        return ()
    return (f"Other programs were busy: {how}. Repeat it without them.",)


def _report(
    record: Record, title: str, sections: Sequence[Section], summary: tuple[str, ...], kept: str | None
) -> Report:
    facts = record.machine
    load = f"load {facts.load[0]:.2f} before, {record.load_at_end[0]:.2f} after"
    short = "all" if record.size == "sanity" else ", ".join(record.short_cases)
    size = (f"Short runs (less than 1 s and 10 M operations), which show little: {short}.",) if short else ()
    cut = ("Fewer rounds than were asked for: whole ones only.",) if record.interrupted else ()
    also = of_environment(record)
    return Report(
        title=title,
        command=record.command,
        sections=tuple(sections),
        summary=summary,
        failures=tuple(f"{failed.case} on {failed.variant}: {failed.reason}" for failed in record.failures),
        notes=(*cut, *size, *also, *record.notes),
        date=f"{record.date:%Y-%m-%d %H:%M} UTC",
        machine={
            "machine": words.machines(record.machines.values()) if record.machines else words.machine(facts),
            "rounds": words.interleaved(record.rounds),
            "load": load,
        },
        records=(kept,) if kept else (),
    )


def of_environment(record: Record) -> tuple[str, ...]:
    """What the environment sets, and which variants set it for themselves: in the list of tunables the last one counts,
    any other setting is replaced."""
    said: list[str] = []
    for name, value in record.settings.items():
        own = [one for one, facts in record.variants.items() if facts.settings.get(name, value) != value]
        what = "adds to it" if name == process.TUNABLES else "has another"
        said.append(f"{name}={value}" + "".join(f" ({one} {what})" for one in own))
    return (f"Set for all runs by the environment: {' '.join(said)}",) if said else ()


# ---- The suite
# ---------------------------------------------------------------------------------------------------------

COST = Metric("cost", "time: per operation of a benchmark, CPU time of a program", "s")
MEMORY = METRICS["peak_rss_bytes"]


def cost(record: Record) -> Figure:
    """Time as a suite compares it: seconds per operation of a benchmark, CPU seconds of any other program."""

    def figure(case: str, variant: str) -> list[float]:
        throughput = record.values(case, variant, "operations_per_s")
        return [1 / value for value in throughput] if throughput else record.values(case, variant, "cpu_s")

    return figure


def memory(record: Record) -> Figure:
    return _series(record, MEMORY.name)


def suite_report(
    record: Record,
    title: str,
    *,
    baseline: str | None = None,
    figures: Iterable[str] = (),
    kept: str | None = None,
) -> Report:
    """Time and memory of all cases, each with a geometric mean, then those of the benchmarks' own figures."""
    chosen = choose_baseline(record, baseline)
    verdicts = len(record.variants) - 1
    each = _each_of(verdicts, record.rounds)
    note = (f"{_note(each, verdicts)} The verdict is that on the geometric mean.",)
    sections: list[Section] = []
    for of, figure in ((COST, cost(record)), (MEMORY, memory(record))):
        found = section(record, of, figure, chosen, confidence=each, mean=True, notes=note)
        if found:
            sections.append(found)
    for name in figures:
        if name in record.metrics():
            found = section(record, metric(record, name), _series(record, name), chosen, confidence=each)
            if found:
                sections.append(found)
    answers: list[str] = []
    for one in sections[:2]:
        if isinstance(one, Comparison) and one.mean:
            for entry in one.mean.entries:
                if entry.ratio and entry.verdict:
                    of_all = f"{entry.name} against {chosen}, geometric mean of {one.title.partition(':')[0]}"
                    said = words.verdict(entry.verdict, one.rounds)
                    answers.append(f"{of_all}: {said}, ratio {words.ratio(entry.ratio)}")
    by_machine = _by_machine(record, COST, cost(record), chosen)
    return _report(record, title, [*sections, *by_machine], tuple(answers), kept)
