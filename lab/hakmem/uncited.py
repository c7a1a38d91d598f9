"""Records that no document cites, with what they say: an unfavourable one can't hide among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hakmem import comparison, peers, statistics, words
from hakmem.allocators import SYSTEM
from hakmem.ledger import Record
from hakmem.measure import CEILING, Metric
from hakmem.report import markdown
from hakmem.statistics import Verdict

TIMES = ("instructions", "operations_per_s", "cost_ns", "wall_s")  # of each case the first that it has
BASELINES = ("a", "glibc", "default", "left alone", "hakmem")
MOST_NAMED = 3  # cases that are named, the worst first


def listing(records: Iterable[Record], link: Callable[[str], str]) -> str:
    """A table in Markdown, a row for each record."""
    rows = ["| record | what it is | what it shows |", "|---|---|---|"]
    for record in records:
        flaws = {
            "one round": record.rounds == 1,
            "short": record.size != "full",
            "changed tree": not record.clean,
            "fewer rounds than were asked for": record.interrupted,
        }
        what = ", ".join([f"{record.kind}: {', '.join(record.cases)}", *(flaw for flaw, has in flaws.items() if has)])
        shown = "; ".join([*_shown(record), *_failed(record)])
        rows.append(f"| [`{record.id}`]({link(record.id)}) | {markdown.escape(what)} | {markdown.escape(shown)} |")
    return "\n".join([*rows, "", comparison.BY_CHANCE])


def _sides(record: Record) -> tuple[str, list[str]]:
    """The baseline, and what was compared with it: builds and settings of hakmem, and libraries of the user's; peers
    and settings of glibc only where there is no other. The ceiling is no side."""
    names = [name for name in record.variants if name != CEILING]
    base = next((name for name in (*BASELINES, *names) if name in names), CEILING)
    others = [name for name in names if name != base]
    theirs = {*peers.PEERS, SYSTEM}
    return base, [name for name in others if record.variants[name].allocator not in theirs] or others


def _shown(record: Record) -> list[str]:
    """A line for each metric that tells a variant from the baseline."""
    base, others = _sides(record)
    found: list[str] = []
    for other in others[:MOST_NAMED]:
        for name, pairs in _compared(record, other, base):
            said = _summed_up(pairs, comparison.metric(record, name), record.rounds, record.blocks)
            found.append(f"{other} to {base}, {said}")
    if len(others) > MOST_NAMED:
        found.append(f"and {len(others) - MOST_NAMED} more")
    return found or ["one side only"]


def _failed(record: Record) -> list[str]:
    """What has no figure, and so is in no ratio."""
    named = [f"{one.case} on {one.variant}" for one in record.failures]
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return [f"failed: {', '.join([*named[:MOST_NAMED], *more])}"] if named else []


Pairs = dict[str, tuple[list[float], list[float]]]  # per case: values of a side and of the baseline


def _compared(record: Record, other: str, base: str) -> Iterator[tuple[str, Pairs]]:
    """Metrics, with the cases that are compared by them: each by its time and by its memory."""
    untimed = list(record.cases)
    for name in (*TIMES, comparison.MEMORY.name):
        cases = untimed if name in TIMES else record.cases
        every = {case: (record.values(case, other, name), record.values(case, base, name)) for case in cases}
        pairs = {case: pair for case, pair in every.items() if comparison.compare(*pair) is not None}
        untimed = [case for case in untimed if case not in pairs]
        if pairs:
            yield name, pairs


def _summed_up(pairs: Pairs, metric: Metric, rounds: int, blocks: Sequence[str]) -> str:
    """Verdict, direction and interval: of the geometric mean, and of the cases that were shown to be worse."""
    mean = statistics.geometric_mean_ratio(pairs, blocks=blocks)
    said = words.verdict(statistics.verdict(mean, metric.less_is_better), rounds)
    summed = f"{metric.title} ({'less' if metric.less_is_better else 'more'} is better): {said}, {words.ratio(mean)}"
    if len(pairs) == 1:
        return summed
    ratios = {case: statistics.ratio(*pair, blocks=blocks) for case, pair in pairs.items()}
    verdicts = {case: statistics.verdict(one, metric.less_is_better) for case, one in ratios.items()}
    worse = sorted(
        (case for case in ratios if verdicts[case] is Verdict.SLOWER),
        key=lambda case: ratios[case].estimate,
        reverse=metric.less_is_better,
    )
    better = sum(one is Verdict.FASTER for one in verdicts.values())
    named = ", ".join(f"{case} {words.ratio(ratios[case])}" for case in worse[:MOST_NAMED])
    counted = f"; of {len(pairs)} cases better in {better}, worse in {len(worse)}"
    return summed + counted + (f" ({named})" if worse else "")
