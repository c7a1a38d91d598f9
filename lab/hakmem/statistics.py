"""What values of interleaved rounds say about two allocators: ratios with intervals, and verdicts that can be trusted.

Pure functions. A ratio is candidate / baseline, compared round by round: what drifts on the machine drifts in both. Its
estimate is the median of all averages of two rounds' log ratios (Hodges and Lehmann), its interval what the signed-rank
test (Wilcoxon) does not reject: exact for any number of rounds, whatever the noise, as long as it is the same in both.
docs/decisions/0021-statistics-of-a-comparison.md says what else was tried, with the false alarms of each.

Fewer rounds than a confidence asks for (six for 95 %) give an interval without ends, and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes a second to import

Array = NDArray[np.float64]

CONFIDENCE = 0.95
THRESHOLD = 0.01  # of a decision: what is smaller is not worth a change
EFFICIENCY = 3 / math.pi  # of the signed-rank test on normal noise, as a share of Student's rounds


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
    ordered = np.sort(_array(values))
    count = len(ordered)
    return Summary(
        count=count,
        mean=float(np.mean(ordered)),
        median=float(np.median(ordered)),
        standard_deviation=float(np.std(ordered, ddof=1)) if count > 1 else math.nan,
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        interval=_cut(ordered, special.bdtr(np.arange(count + 1), count, 0.5), confidence),
    )


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(_logarithms(values))))


# ---- Ratios --------------------------------------------------------------------------------------------------------


def ratio(
    candidate: Sequence[float], baseline: Sequence[float], *, paired: bool = True, confidence: float = CONFIDENCE
) -> Interval:
    """Candidate / baseline of positive values. Paired: the i-th of both are of the same round. Not paired: they are of
    two independent measurements, and the machine's drift between these can't be told from a difference."""
    above, below = _logarithms(candidate), _logarithms(baseline)
    if not paired:
        differences = np.sort(np.subtract.outer(above, below), axis=None)
        return _exponential(_cut(differences, _rank_sum_distribution(len(above), len(below)), confidence))
    if len(above) != len(below):
        raise ValueError(f"rounds of candidate and baseline differ: {len(above)} and {len(below)}")
    return _exponential(_centre(above - below, confidence))


def geometric_mean_ratio(
    per_case: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, confidence: float = CONFIDENCE
) -> Interval:
    """Ratio of the geometric means over all cases, (candidate, baseline) each, with as many rounds in every case. The
    interval is of this very set of cases: how far noise moves the mean, not what other programs would show."""
    rounds = {len(values) for pair in per_case.values() for values in pair}
    if len(rounds) != 1:
        raise ValueError(f"rounds of the cases differ: {sorted(rounds)}")
    differences = [_logarithms(candidate) - _logarithms(baseline) for candidate, baseline in per_case.values()]
    return _exponential(_centre(np.mean(differences, axis=0), confidence))


# ---- Verdicts ------------------------------------------------------------------------------------------------------


def verdict(interval: Interval, less_is_better: bool = True) -> Verdict:
    """No difference when the interval of the ratio holds 1."""
    if not interval.is_bounded:
        return Verdict.UNDECIDED
    if interval.holds(1):
        return Verdict.NO_DIFFERENCE
    return Verdict.FASTER if (interval.high < 1) == less_is_better else Verdict.SLOWER


def decision(interval: Interval, threshold: float = THRESHOLD, less_is_better: bool = True) -> Decision:
    """GO when a change is shown to be better (the whole interval is) and estimated to be better by the threshold or
    more; NO_GO when it is shown to be worse and estimated to be worse by the threshold or more; NEUTRAL when it is
    shown to be neither by more than the threshold (the whole interval is within it); else UNKNOWN. Memory is decided
    the same way, by itself: a change is worth taking when no figure that counts says NO_GO."""
    found = verdict(interval, less_is_better)
    if found is Verdict.UNDECIDED:
        return Decision.UNDECIDED
    if 1 - threshold <= interval.low and interval.high <= 1 + threshold:
        return Decision.NEUTRAL
    if found is Verdict.NO_DIFFERENCE or 1 - threshold < interval.estimate < 1 + threshold:
        return Decision.UNKNOWN
    return Decision.GO if found is Verdict.FASTER else Decision.NO_GO


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
            contrast = sum(
                (-1) ** (size - sum(key[factor] for factor in chosen)) * values for key, values in logarithms.items()
            )
            per_round = np.asarray(contrast) / 2 ** (len(names) - size)
            interval = _exponential(_centre(per_round, confidence))
            found.append(Effect(tuple(names[factor] for factor in chosen), interval))
    return found


# ---- Planning ------------------------------------------------------------------------------------------------------


def power_of(rounds: int, noise: float, effect: float, *, confidence: float = CONFIDENCE) -> float:
    """The chance that paired rounds show a difference of `effect` (0.05: 5 %), when logarithms of single runs are
    normal with a standard deviation of `noise` (0.02: runs scatter by 2 %)."""
    cut, tail = _cut_at(_signed_rank_distribution(rounds), confidence)
    if cut == 0:
        return 0.0
    distance = abs(math.log1p(effect)) / (noise * math.sqrt(2))
    if cut == 1:  # every round has to have the same sign
        return float(special.ndtr(distance) ** rounds)
    critical = special.stdtrit(rounds - 1, 1 - tail)
    return float(1 - special.nctdtr(rounds - 1, distance * math.sqrt(rounds * EFFICIENCY), critical))


def rounds_needed(noise: float, effect: float, power: float = 0.95, *, confidence: float = CONFIDENCE) -> int:
    """The fewest paired rounds that have this power."""
    if not (noise >= 0 and effect > -1 and effect != 0 and 0 < power < 1):
        raise ValueError(f"no number of rounds for noise {noise}, effect {effect} and power {power}")
    rounds = minimum_rounds(confidence)
    if noise == 0:
        return rounds
    distance = abs(math.log1p(effect)) / (noise * math.sqrt(2))
    normal = special.ndtri((1 + confidence) / 2) + special.ndtri(power)
    rounds = max(rounds, int((normal / distance) ** 2))  # Student's rounds for known noise: never too many
    while power_of(rounds, noise, effect, confidence=confidence) < power:
        rounds += 1
    return rounds


# ---- Order statistics ----------------------------------------------------------------------------------------------


def _array(values: Sequence[float]) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.all(np.isfinite(array)):
        raise ValueError(f"expected one or more finite values, got {values!r}")
    return array


def _logarithms(values: Sequence[float]) -> Array:
    array = _array(values)
    if np.any(array <= 0):
        raise ValueError(f"a ratio needs values above 0, got {float(array.min()):g}")
    return np.log(array)


def _exponential(interval: Interval) -> Interval:
    return Interval(math.exp(interval.estimate), math.exp(interval.low), math.exp(interval.high))


def _centre(differences: Array, confidence: float) -> Interval:
    exact = np.round(differences, 12)  # sums of logarithms that cancel are 0: values without noise are common in memory
    rows, columns = np.triu_indices(len(exact))
    averages = np.sort((exact[rows] + exact[columns]) / 2)
    return _cut(averages, _signed_rank_distribution(len(differences)), confidence)


def _cut(ordered: Array, cumulative: Array, confidence: float) -> Interval:
    """The median of ordered values, between the outermost of them that a test leaves. `cumulative`: the chances, when
    nothing differs, that at most 0, 1, 2... of the ordered values lie on one side."""
    estimate = float(np.median(ordered))
    cut, _ = _cut_at(cumulative, confidence)
    if cut == 0:
        return Interval(estimate, -math.inf, math.inf)
    return Interval(estimate, float(ordered[cut - 1]), float(ordered[-cut]))


def _cut_at(cumulative: Array, confidence: float) -> tuple[int, float]:
    """How many values are cut off on either side, and the chance of an error on one side."""
    cut = int(np.searchsorted(cumulative, (1 - confidence) / 2 * (1 + 1e-9), side="right"))
    return cut, float(cumulative[cut - 1]) if cut else 0.0


@lru_cache(maxsize=64)
def _signed_rank_distribution(rounds: int) -> Array:
    """Of the sum of the ranks whose sign is negative: each of 1..rounds with chance 1/2."""
    chances: Array = np.ones(1)
    for rank in range(1, rounds + 1):
        without, with_it = np.pad(chances, (0, rank)), np.pad(chances, (rank, 0))
        chances = (without + with_it) / 2
    cumulative: Array = np.cumsum(chances)
    return cumulative


@lru_cache(maxsize=64)
def _rank_sum_distribution(first: int, second: int) -> Array:
    """Of the number of pairs, one of each group, that are in the wrong order (Mann and Whitney)."""
    counts = np.zeros((first + 1, first * second + 1))
    counts[0, 0] = 1
    for place in range(1, first + second + 1):  # the value at this place belongs to the first group, or doesn't
        for chosen in range(min(first, place), 0, -1):
            before = place - chosen  # how many of the second group stand before it
            if before <= second:
                counts[chosen, before:] += counts[chosen - 1, : counts.shape[1] - before]
    cumulative: Array = np.cumsum(counts[first] / counts[first].sum())
    return cumulative
