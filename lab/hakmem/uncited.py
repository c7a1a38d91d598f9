"""Records that no document cites, with what they say: an unfavourable one can't hide among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hakmem import comparison, statistics, words
from hakmem.ledger import Record
from hakmem.measure import Metric
from hakmem.statistics import Interval, Verdict

TIMES = ("instructions", "operations_per_s", "cost_ns", "wall_s")  # the first that there is
BASELINES = ("a", "glibc", "default", "left alone", "ceiling")
MOST_NAMED = 3  # cases that are named, the worst first


def listing(records: Iterable[Record], link: Callable[[str], str]) -> str:
    """A table in Markdown, a row for each record."""
    rows = ["| record | what it is | what it shows |", "|---|---|---|"]
    for record in records:
        few = "" if record.rounds > 1 else ", one round"
        what = f"{record.kind}: {', '.join(record.cases)}{few}{', short' if record.size != 'full' else ''}"
        rows.append(f"| [{record.id}]({link(record.id)}) | {_cell(what)} | {_cell('; '.join(_shown(record)))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _baseline(record: Record) -> str:
    return next((name for name in BASELINES if name in record.variants), next(iter(record.variants)))


def _shown(record: Record) -> list[str]:
    """A line for each metric that tells a variant from the baseline."""
    base = _baseline(record)
    others = [name for name in record.variants if name != base]
    if len(others) > 1 and "hakmem" in others:
        others = ["hakmem"]
    time = next((name for name in TIMES if name in record.metrics()), TIMES[-1])
    found: list[str] = []
    for other in others[:MOST_NAMED]:
        for name in (time, "peak_rss_bytes"):
            ratios = _ratios(record, other, base, name)
            if ratios:
                found.append(f"{other} to {base}, {_summed_up(ratios, comparison.metric(record, name), record.rounds)}")
    if len(others) > MOST_NAMED:
        found.append(f"and {len(others) - MOST_NAMED} more")
    return found or ["one side only"]


def _ratios(record: Record, other: str, base: str, metric: str) -> dict[str, Interval]:
    pairs = {
        case: comparison.compare(record.values(case, other, metric), record.values(case, base, metric))
        for case in record.cases
    }
    return {case: interval for case, interval in pairs.items() if interval is not None}


def _summed_up(ratios: dict[str, Interval], metric: Metric, rounds: int) -> str:
    verdicts = {case: statistics.verdict(one, metric.less_is_better) for case, one in ratios.items()}
    if len(ratios) == 1:
        ((case, interval),) = ratios.items()
        return f"{metric.title}: {words.verdict(verdicts[case], rounds)}, {words.ratio(interval)}"
    worse = sorted(
        (case for case in ratios if verdicts[case] is Verdict.SLOWER),
        key=lambda case: ratios[case].estimate,
        reverse=metric.less_is_better,
    )
    better = sum(one is Verdict.FASTER for one in verdicts.values())
    named = ", ".join(f"{case} {words.ratio(ratios[case])}" for case in worse[:MOST_NAMED])
    return f"{metric.title}: of {len(ratios)} cases better in {better}, worse in {len(worse)}" + (
        f" ({named})" if worse else ""
    )
