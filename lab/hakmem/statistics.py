"""What values of interleaved rounds say about two allocators: ratios with intervals, and verdicts that can be trusted.

Pure functions. A ratio is candidate / baseline, compared round by round: what drifts on the machine drifts in both. Its
estimate is the median of all averages of two rounds' log ratios (Hodges and Lehmann), its interval what the signed-rank
test (Wilcoxon) does not reject: exact for any number of rounds, whatever the noise, as long as it is the same in both.
docs/decisions/0021-statistics-of-a-comparison.md says what else was tried, with the false alarms of each. Where several
machines ran the rounds, each is a block: only rounds of one block are averaged, and ranked, with each other
(docs/decisions/0148).

Fewer rounds than a confidence asks for (six for 95 %) give an interval without ends, and no verdict.
"""

from __future__ import annotations

import math
import statistics
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate, combinations, combinations_with_replacement

CONFIDENCE = 0.95
MOST_PAIRS, NORMAL_FROM = 4000, 8  # of values of two groups: beyond, ranks are as good as normal
THRESHOLD = 0.01  # of a decision: what is smaller is not worth a change


@dataclass(frozen=True)
class Interval:
    """low <= estimate <= high. Infinite ends (0 below, for a ratio): there were too few rounds for an interval."""

    estimate: float
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.high)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Summary:
    count: int
    mean: float
    median: float
    standard_deviation: float  # of the sample; nan for one value
    minimum: float
    maximum: float
    interval: Interval  # of the median


class Verdict(Enum):
    """Of a candidate against its baseline. For a figure that is not a time, "faster" reads "better"."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    UNKNOWN = "don't know"
    UNDECIDED = "too few rounds"


class Decision(Enum):
    """Of a change that can be taken or left."""

    GO = "GO"
    NEUTRAL = "NEUTRAL"
    UNKNOWN = "DON'T KNOW"
    NO_GO = "NO-GO"
    UNDECIDED = "too few rounds"


@dataclass(frozen=True)
class Effect:
    """Of one factor: by what turning it on multiplies the figure. Of several: by how much what they do together differs
    from the product of what they do apart; 1 when their gains simply multiply."""

    factors: tuple[str, ...]
    interval: Interval


# ---- Values --------------------------------------------------------------------------------------------------------


def summary(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Summary:
    """The interval of the median lies between two of the values: that needs no assumption about their distribution."""
    ordered = sorted(_finite(values))
    count = len(ordered)
    heads = _shares([math.comb(count, number) for number in range(count + 1)])
    return Summary(
        count=count,
        mean=statistics.fmean(ordered),
        median=statistics.median(ordered),
        standard_deviation=statistics.stdev(ordered) if count > 1 else math.nan,
        minimum=ordered[0],
        maximum=ordered[-1],
        interval=_cut(ordered, heads, confidence),
    )


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(_logarithms(values)))


# ---- Ratios --------------------------------------------------------------------------------------------------------


def ratio(
    candidate: Sequence[float],
    baseline: Sequence[float],
    *,
    paired: bool = True,
    confidence: float = CONFIDENCE,
    blocks: Sequence[str] = (),
) -> Interval:
    """Candidate / baseline of positive values. Paired: the i-th of both are of the same round, and of the i-th block;
    without blocks they are all of one. Not paired: they are of two independent measurements, and the machine's drift
    between these can't be told from a difference."""
    above, below = _logarithms(candidate), _logarithms(baseline)
    if not paired:
        return _exponential(_shift(above, below, confidence))
    if len(above) != len(below):
        raise ValueError(f"rounds of candidate and baseline differ: {len(above)} and {len(below)}")
    return _exponential(_centre(_differences(above, below), confidence, blocks))


def geometric_mean_ratio(
    per_case: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    confidence: float = CONFIDENCE,
    blocks: Sequence[str] = (),
) -> Interval:
    """Ratio of the geometric means over all cases, (candidate, baseline) each, with as many rounds in every case. The
    interval is of this very set of cases: how far noise moves the mean, not what other programs would show."""
    rounds = {len(values) for pair in per_case.values() for values in pair}
    if len(rounds) != 1:
        raise ValueError(f"rounds of the cases differ: {sorted(rounds)}")
    cases = [_differences(_logarithms(candidate), _logarithms(baseline)) for candidate, baseline in per_case.values()]
    means = [statistics.fmean(of_round) for of_round in zip(*cases, strict=True)]
    return _exponential(_centre(means, confidence, blocks))


# ---- Verdicts ------------------------------------------------------------------------------------------------------


def verdict(interval: Interval, less_is_better: bool = True) -> Verdict:
    """No difference when the interval of the ratio holds 1 and nothing that is worth a change; UNKNOWN when it holds 1
    and more."""
    if not interval.is_bounded:
        return Verdict.UNDECIDED
    if interval.holds(1):
        return Verdict.NO_DIFFERENCE if _is_within(interval, THRESHOLD) else Verdict.UNKNOWN
    return Verdict.FASTER if (interval.high < 1) == less_is_better else Verdict.SLOWER


def decision(interval: Interval, threshold: float = THRESHOLD) -> Decision:
    """Of a figure of which less is better. GO when a change is shown to be better (the whole interval is) and estimated
    to be better by the threshold or more; NO_GO when it is shown to be worse and estimated to be worse by the threshold
    or more; NEUTRAL when it is shown to be neither by more than the threshold (the whole interval is within it); else
    UNKNOWN. Memory is decided the same way, by itself: a change is worth taking when no figure that counts says
    NO_GO."""
    found = verdict(interval)
    if found is Verdict.UNDECIDED:
        return Decision.UNDECIDED
    if _is_within(interval, threshold):
        return Decision.NEUTRAL
    if interval.holds(1) or 1 - threshold < interval.estimate < 1 + threshold:
        return Decision.UNKNOWN
    return Decision.GO if found is Verdict.FASTER else Decision.NO_GO


def _is_within(interval: Interval, threshold: float) -> bool:
    return 1 - threshold <= interval.low and interval.high <= 1 + threshold


def family_confidence(count: int, confidence: float = CONFIDENCE) -> float:
    """The confidence of each of `count` intervals with which all hold together with `confidence` (Bonferroni). The
    figure that a measurement was made for stands alone, uncorrected."""
    return 1 - (1 - confidence) / max(count, 1)


def minimum_rounds(confidence: float = CONFIDENCE) -> int:
    """The fewest paired rounds that give an interval with ends: their signs alone must be unlikely enough."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


# ---- Several switches at once --------------------------------------------------------------------------------------


def effects(
    levels: Mapping[tuple[int, ...], Sequence[float]], names: Sequence[str], *, confidence: float = CONFIDENCE
) -> list[Effect]:
    """Main effects, then interactions, of a full two-level design: `levels` has the values per round of every
    combination of 0 and 1, in the order of `names`. family_confidence(2 ** len(names) - 1) corrects them as one
    table."""
    if len(levels) != 2 ** len(names) or any(len(key) != len(names) or not {*key} <= {0, 1} for key in levels):
        raise ValueError(f"{len(names)} switches need values for all {2 ** len(names)} combinations of 0 and 1")
    if len({len(values) for values in levels.values()}) != 1:
        raise ValueError("combinations differ in their number of rounds")
    logarithms = {key: _logarithms(values) for key, values in levels.items()}
    found = []
    for size in range(1, len(names) + 1):
        for chosen in combinations(range(len(names)), size):
            signs = {key: (-1) ** (size - sum(key[factor] for factor in chosen)) for key in logarithms}
            contrasts = [
                math.fsum(signs[key] * value for key, value in zip(logarithms, of_round, strict=True))
                for of_round in zip(*logarithms.values(), strict=True)
            ]
            per_round = [contrast / 2 ** (len(names) - size) for contrast in contrasts]
            interval = _exponential(_centre(per_round, confidence))
            found.append(Effect(tuple(names[factor] for factor in chosen), interval))
    return found


# ---- Order statistics ----------------------------------------------------------------------------------------------


def _finite(values: Sequence[float]) -> Sequence[float]:
    if not len(values) or not all(map(math.isfinite, values)):
        raise ValueError(f"expected one or more finite values, got {values!r}")
    return values


def _logarithms(values: Sequence[float]) -> list[float]:
    if min(_finite(values)) <= 0:
        raise ValueError(f"a ratio needs values above 0, got {min(values):g}")
    return [math.log(value) for value in values]


def _differences(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(above, below, strict=True)]


def _exponential(interval: Interval) -> Interval:
    return Interval(math.exp(interval.estimate), math.exp(interval.low), math.exp(interval.high))


def _centre(differences: Sequence[float], confidence: float, blocks: Sequence[str] = ()) -> Interval:
    """Of rounds in blocks, each of which has a noise of its own."""
    exact = [round(one, 12) for one in differences]  # sums that cancel are 0: values without noise are common in memory
    of_block: dict[str, list[float]] = {}
    for one, block in zip(exact, blocks or [""] * len(exact), strict=True):
        of_block.setdefault(block, []).append(one)
    pairs = (combinations_with_replacement(own, 2) for own in of_block.values())
    averages = sorted((one + other) / 2 for of_one in pairs for one, other in of_one)
    return _cut(averages, _signed_rank_distribution(*sorted(map(len, of_block.values()))), confidence)


def _shift(above: Sequence[float], below: Sequence[float], confidence: float) -> Interval:
    """The median of all differences of two values, one of each group, between the outermost of them that the rank-sum
    test leaves. Of very many pairs ranks are as good as normal, and differences are found without a list of all."""
    count = len(above) * len(below)
    if count <= MOST_PAIRS or min(len(above), len(below)) < NORMAL_FROM:
        differences = sorted(one - other for one in above for other in below)
        return _cut(differences, _rank_sum_distribution(len(above), len(below)), confidence)
    spread = math.sqrt(count * (len(above) + len(below) + 1) / 12)
    reach = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * spread
    cut = math.floor(count / 2 - reach + 0.5)
    ends = sorted(above), sorted(below)
    low, middle, above_middle, high = (
        _difference_at(*ends, rank) for rank in (cut - 1, (count - 1) // 2, count // 2, count - cut)
    )
    return Interval((middle + above_middle) / 2, low, high)


def _difference_at(above: Sequence[float], below: Sequence[float], rank: int) -> float:
    """The one that so many are below, by halving. Both groups are in order."""
    low, high = above[0] - below[-1], above[-1] - below[0]
    while low < (middle := (low + high) / 2) < high:
        if _count_to(above, below, middle) > rank:
            high = middle
        else:
            low = middle
    return low if _count_to(above, below, low) > rank else high


def _count_to(above: Sequence[float], below: Sequence[float], most: float) -> int:
    """Of differences that are at most that."""
    count, place = 0, len(below)
    for one in above:
        while place and one - below[len(below) - place] > most:
            place -= 1
        count += place
    return count


def _cut(ordered: Sequence[float], cumulative: Sequence[float], confidence: float) -> Interval:
    """The median of ordered values, between the outermost of them that a test leaves. `cumulative`: the chances, when
    nothing differs, that at most 0, 1, 2... of the ordered values lie on one side."""
    estimate = statistics.median(ordered)
    cut = _cut_off(cumulative, confidence)
    if cut == 0:
        return Interval(estimate, -math.inf, math.inf)
    return Interval(estimate, ordered[cut - 1], ordered[-cut])


def _cut_off(cumulative: Sequence[float], confidence: float) -> int:
    """How many values are cut off on either side."""
    return bisect_right(cumulative, (1 - confidence) / 2 * (1 + 1e-9))


def _shares(ways: Sequence[int]) -> list[float]:
    """Cumulative chances from the number of ways to each outcome."""
    total = sum(ways)
    return [below / total for below in accumulate(ways)]


@lru_cache(maxsize=64)
def _signed_rank_distribution(*rounds: int) -> list[float]:
    """Of the sum, over blocks of so many rounds, of the ranks whose sign is negative: each of 1..rounds with chance
    1/2. The chances of all sums are fields of 64 bits in one integer, 1 being 2^62: a thousand rounds have half a
    million sums, and as many steps."""
    sums = sum(of_block * (of_block + 1) // 2 for of_block in rounds) + 1
    halved = int.from_bytes((b"\xff" * 7 + b"\x7f") * sums, "little")  # without what a field got from the next one
    chances = 1 << 62
    for rank in (rank for of_block in rounds for rank in range(1, of_block + 1)):
        chances = (chances + (chances << 64 * rank)) >> 1 & halved
    fields = array("Q", chances.to_bytes(8 * sums, sys.byteorder))
    return [below / (1 << 62) for below in accumulate(fields)]


@lru_cache(maxsize=64)
def _rank_sum_distribution(first: int, second: int) -> list[float]:
    """Of the number of pairs, one of each group, that are in the wrong order (Mann and Whitney). The ways to have each
    number are the coefficients of the product of (1 - x^(second + i)) / (1 - x^i), i from 1 to first."""
    ways = [1] + [0] * (first * second)
    for i in range(1, first + 1):
        for place in range(len(ways) - 1, second + i - 1, -1):
            ways[place] -= ways[place - second - i]
        for place in range(i, len(ways)):
            ways[place] += ways[place - i]
    return _shares(ways)
