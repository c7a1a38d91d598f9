"""How many rounds a comparison needs: the figures of docs/decisions/0021. Student's test of normal noise stands in for
the signed-rank test, with fewer rounds by its efficiency."""

from __future__ import annotations

import math

from hakmem import statistics
from hakmem.statistics import CONFIDENCE
from scipy import special

EFFICIENCY = 3 / math.pi  # of the signed-rank test on normal noise, as a share of Student's rounds


def power_of(rounds: int, noise: float, effect: float, *, confidence: float = CONFIDENCE) -> float:
    """The chance that paired rounds show a difference of `effect` (0.05: 5 %), when logarithms of single runs are
    normal with a standard deviation of `noise` (0.02: runs scatter by 2 %)."""
    cumulative = statistics._signed_rank_distribution(rounds)
    cut = statistics._cut_off(cumulative, confidence)
    if cut == 0:
        return 0.0
    distance = abs(math.log1p(effect)) / (noise * math.sqrt(2))
    if cut == 1:  # every round has to have the same sign
        return float(special.ndtr(distance) ** rounds)
    critical = special.stdtrit(rounds - 1, 1 - cumulative[cut - 1])
    return float(1 - special.nctdtr(rounds - 1, distance * math.sqrt(rounds * EFFICIENCY), critical))


def rounds_needed(noise: float, effect: float, power: float = 0.95, *, confidence: float = CONFIDENCE) -> int:
    """The fewest paired rounds that have this power."""
    if not (noise >= 0 and effect > -1 and effect != 0 and 0 < power < 1):
        raise ValueError(f"no number of rounds for noise {noise}, effect {effect} and power {power}")
    rounds = statistics.minimum_rounds(confidence)
    if noise == 0:
        return rounds
    distance = abs(math.log1p(effect)) / (noise * math.sqrt(2))
    normal = special.ndtri((1 + confidence) / 2) + special.ndtri(power)
    rounds = max(rounds, int((normal / distance) ** 2))  # Student's rounds for known noise: never too many
    while power_of(rounds, noise, effect, confidence=confidence) < power:
        rounds += 1
    return rounds
