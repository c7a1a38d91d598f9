"""The contest of allocators: one record, ranked by time and by peak RSS, with each case beside the ranks.

Each figure is a ratio of which less is better, paired by round: in the ranks to the C library's allocator, in the cases
to the allocator that is best in that case. So who loses a case is seen in its own column, whoever it is.
"""

from __future__ import annotations

import statistics as medians
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hakmem import catalogue, comparison, figures, machine, native, peers, statistics, words
from hakmem.allocators import OWN, SYSTEM, Allocator
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.peers import store
from hakmem.statistics import Interval, Verdict

KIND = "contest"
PART = "A part of the contest: "  # begins a note
NOBODY = "It wasn't measured yet."
SIDES = (("Time", comparison.cost), ("Peak RSS", comparison.memory))


@dataclass(frozen=True)
class _Side:
    """One figure of all cases: the values of each allocator that has them, and which is the best by its median."""

    title: str
    record: Record
    baseline: str
    values: dict[str, dict[str, list[float]]]  # by case and allocator
    best: dict[str, str]  # by case

    def ratio(self, case: str, name: str) -> Interval:
        """To the best of the case."""
        of_case = self.values[case]
        return statistics.ratio(of_case[name], of_case[self.best[case]], blocks=self.record.blocks)

    def shared(self, name: str) -> list[str]:
        """Cases that it and the baseline ran."""
        return [case for case, of_case in self.values.items() if {name, self.baseline} <= of_case.keys()]

    def mean(self, name: str) -> Interval | None:
        """To the baseline, over the cases that both ran; None if there are none."""
        pairs = {case: (self.values[case][name], self.values[case][self.baseline]) for case in self.shared(name)}
        return statistics.geometric_mean_ratio(pairs, blocks=self.record.blocks) if pairs else None

    def ranked(self) -> dict[str, Interval]:
        """Allocators and their means, the best first."""
        means = {name: self.mean(name) for name in self.record.variants}
        return dict(sorted(((n, mean) for n, mean in means.items() if mean), key=lambda pair: pair[1].estimate))


def versions(players: list[Allocator]) -> list[str]:
    """A line for each, for the record's notes: what it is."""
    return [f"{player.name}: {_version(player)}" for player in players]


def part(players: Iterable[str], cases: Iterable[str]) -> list[str]:
    """A line for the record's notes where it hasn't all allocators or cases that there are."""
    shares = []
    for what, there, found in (
        ("allocators", {OWN, SYSTEM, *peers.PEERS}, {*players}),
        ("cases", {*catalogue.usual()}, {*cases}),
    ):
        if not there <= found:
            shares.append(f"{len(there & found)} of {len(there)} {what}")
    return [f"{PART}{', '.join(shares)}"] if shares else []


def _version(player: Allocator) -> str:
    if player.library is None:
        return machine.facts().libc
    if player.library == native.library():
        return native.version(player.library)
    stamp = store.stamp(player.name)
    if stamp is None or player.library != store.library(player.name):
        return f"a library of the user's, {player.library.name}"
    return f"{stamp.version}, {stamp.source}"


def markdown(record: Record, link: Callable[[str], str]) -> str:
    """What stands on the page: the ranks, then the cases, then who took part and what failed."""
    expect_rounds(record.rounds)
    sides = [_side(record, title, of(record)) for title, of in SIDES]
    lines = [line for note in record.notes if note.startswith(PART) for line in (f"**{note}.**", "")]
    if record.short_cases:
        lines += [f"**Left out, of too short runs: {', '.join(record.short_cases)}.**", ""]
    for side in sides:
        lines += [f"### {side.title}: ranks", "", *_ranks(side), ""]
    for side in sides:
        lines += [f"### {side.title}: every case", "", *_cases(side), ""]
    failed = [f"- {one.case} under {one.variant}: {one.reason}" for one in record.failures]
    lines += ["### What failed", "", *failed, ""] if failed else []
    lines += ["### Who took part", "", *(f"- {note}" for note in record.notes if not note.startswith(PART)), ""]
    source = f"{figures.provenance(record)} ([record]({link(record.id)}))."
    return "\n".join([*lines, source, "", f"    {record.command}"])


def expect_rounds(rounds: int) -> None:
    """That they can tell anybody from the best."""
    least = statistics.minimum_rounds()
    if rounds < least:
        raise LabError(f"a contest ranks by intervals: {words.few_rounds(rounds, least)}")


def _side(record: Record, title: str, figure: comparison.Figure) -> _Side:
    values: dict[str, dict[str, list[float]]] = {}
    for case in (case for case in record.cases if case not in record.short_cases):
        found = {name: list(figure(case, name)) for name in record.variants}
        values[case] = {name: some for name, some in found.items() if some}
    best = {case: min(names, key=lambda name: medians.median(names[name])) for case, names in values.items() if names}
    return _Side(title, record, comparison.choose_baseline(record, None), {case: values[case] for case in best}, best)


def _ranks(side: _Side) -> list[str]:
    head = ("rank", "allocator", f"to {side.baseline}", "best in", "last in", "its worst case, to the best there")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    of_mean = len(side.shared(side.baseline))
    for rank, (name, mean) in enumerate(side.ranked().items(), start=1):
        ratios = {case: side.ratio(case, name) for case, of_case in side.values.items() if name in of_case}
        worst = max(ratios, key=lambda case: ratios[case].estimate)
        first = sum(side.best[case] == name for case in ratios)
        last = sum(_last(side.values[case]) == name for case in ratios)
        shared = len(side.shared(name))
        who = _named(name) + ("" if shared == of_mean else f" ({shared} cases)")
        cells = (str(rank), who, words.ratio(mean), str(first), str(last), f"{worst}: {words.ratio(ratios[worst])}")
        lines.append("| " + " | ".join(cells) + " |")
    over = f"Geometric mean over {of_mean} cases, and in how many of all {len(side.values)} it is best and last."
    return [*lines, "", f"{over} {comparison.BY_CHANCE}"]


def _last(of_case: dict[str, list[float]]) -> str:
    return max(of_case, key=lambda name: medians.median(of_case[name]))


def _cases(side: _Side) -> list[str]:
    names = list(side.ranked())
    lines = ["| | " + " | ".join(_named(name) for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for case, of_case in side.values.items():
        cells = [_cell(side, case, name) if name in of_case else "failed" for name in names]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    best = "Ratios to the best of the row, by medians; bold is the best, and what its rounds don't tell from it."
    paired = "Ratios are paired by round, so what isn't told from the best may lie below 1."
    return [*lines, "", f"{best} {paired}"]


def _cell(side: _Side, case: str, name: str) -> str:
    found = side.ratio(case, name)
    shown = f"{found.estimate:.{words.places(found, found.estimate, least=2)}f}"
    is_best = name == side.best[case] or statistics.verdict(found) is not Verdict.SLOWER
    return f"**{shown}**" if is_best else shown


def _named(name: str) -> str:
    return f"*{name}*" if name == OWN else name
