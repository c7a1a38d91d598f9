"""How often an interval of a ratio raises a false alarm, and what it finds: the table of docs/decisions/0021.

    python lab/tests/calibration.py [SETS]

Kinds of noise, as log ratios of two allocators that do not differ, and the intervals that the decision weighed against
each other, each vectorised over sets of rounds. The tests take the same noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hakmem import ledger, statistics
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Random = np.random.Generator

EVIDENCE = Path(__file__).resolve().parents[2] / "evidence"
RUN_NOISE = 0.02  # standard deviation of one run's logarithm, where a noise is made and not resampled
SLOWDOWN = 1.05
RESAMPLES = 999

# ---- Noise: (random, sets, rounds) -> log ratios of candidate and baseline that are the same -----------------------


def _between_equals(draw: Callable[[Random, tuple[int, int]], Array]) -> Callable[[Random, int, int], Array]:
    def difference(random: Random, sets: int, rounds: int) -> Array:
        differences: Array = draw(random, (sets, rounds)) - draw(random, (sets, rounds))
        return differences

    return difference


def _spikes(random: Random, size: tuple[int, int]) -> Array:
    """One run of ten is disturbed."""
    disturbed: Array = RUN_NOISE / 2 * random.standard_normal(size) * np.where(random.random(size) < 0.1, 15, 1)
    return disturbed


def _unequal(random: Random, sets: int, rounds: int) -> Array:
    """Same centre, one scatters ten times as much."""
    scale = RUN_NOISE / 4
    return scale * random.standard_normal((sets, rounds)) - 10 * scale * random.standard_normal((sets, rounds))


def _in_turn(course: Callable[[Random, int, int], Array]) -> Callable[[Random, int, int], Array]:
    """Two of four allocators that take turns, on a machine whose speed takes this course from run to run."""

    def draw(random: Random, sets: int, rounds: int) -> Array:
        runs = course(random, sets, 4 * rounds) + RUN_NOISE * random.standard_normal((sets, 4 * rounds))
        turn = np.arange(rounds)
        return runs[:, 4 * turn + turn % 4] - runs[:, 4 * turn + (turn + 1) % 4]

    return draw


def _drift(random: Random, sets: int, runs: int) -> Array:
    """30 % within the measurement."""
    return np.tile(np.log(1.3) * np.linspace(0, 1, runs), (sets, 1))


def _autocorrelated(random: Random, sets: int, runs: int) -> Array:
    steps = 0.03 * random.standard_normal((sets, runs))
    course = np.empty_like(steps)
    course[:, 0] = steps[:, 0]
    for run in range(1, runs):
        course[:, run] = 0.9 * course[:, run - 1] + np.sqrt(1 - 0.9**2) * steps[:, run]
    return course


def residuals(figure: str) -> Array:
    """Of a real record's raw values: one row of logarithms around their median per case and allocator."""
    record = ledger.load(EVIDENCE / "2026-11-21-floor.json")
    rows = [np.log(series.values) for series in record.series if series.metric == figure]
    return np.array([row - np.median(row) for row in rows])


def _resampled(figure: str) -> Callable[[Random, int, int], Array]:
    def draw(random: Random, sets: int, rounds: int) -> Array:
        source = residuals(figure)
        row = random.integers(len(source), size=(sets, 1))
        values: Array = source[row, random.integers(source.shape[1], size=(sets, 2 * rounds))]
        return values[:, :rounds] - values[:, rounds:]

    return draw


NOISE: dict[str, Callable[[Random, int, int], Array]] = {
    "normal": _between_equals(lambda random, size: RUN_NOISE * random.standard_normal(size)),
    "skewed (log-normal)": _between_equals(lambda random, size: RUN_NOISE * np.exp(random.standard_normal(size))),
    "heavy tails (t, 2 degrees)": _between_equals(lambda random, size: RUN_NOISE * random.standard_t(2, size)),
    "disturbed runs": _between_equals(_spikes),
    "one scatters more": _unequal,
    "drift of 30 %": _in_turn(_drift),
    "autocorrelated": _in_turn(_autocorrelated),
    "random walk": _in_turn(lambda random, sets, runs: np.cumsum(0.01 * random.standard_normal((sets, runs)), axis=1)),
    "record, throughput": _resampled("operations_per_s"),
    "record, peak RSS": _resampled("peak_rss_bytes"),
}

# ---- Intervals: (random, differences of some sets) -> ends ---------------------------------------------------------

Ends = tuple[Array, Array]


def _again(random: Random, sets: Array) -> Array:
    chosen = random.integers(sets.shape[1], size=(len(sets), RESAMPLES, sets.shape[1]))
    return np.take_along_axis(sets[:, None, :], chosen, axis=2)


def _percentiles(found: Array) -> Ends:
    low, high = np.quantile(found, [0.025, 0.975], axis=1)
    return low, high


def _percentile_median(random: Random, sets: Array) -> Ends:
    return _percentiles(np.median(_again(random, sets), axis=2))


def _percentile_mean(random: Random, sets: Array) -> Ends:
    return _percentiles(_again(random, sets).mean(axis=2))


def _bca_mean(random: Random, sets: Array) -> Ends:
    found = np.sort(_again(random, sets).mean(axis=2), axis=1)
    below = (found < sets.mean(axis=1, keepdims=True)).mean(axis=1)
    bias = stats.norm.ppf(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    influence = sets - sets.mean(axis=1, keepdims=True)
    acceleration = (influence**3).sum(axis=1) / (6 * (influence**2).sum(axis=1) ** 1.5 + 1e-30)
    ends = []
    for chance in (0.025, 0.975):
        point = bias + stats.norm.ppf(chance)
        place = stats.norm.cdf(bias + point / (1 - acceleration * point)) * RESAMPLES
        ends.append(found[np.arange(len(sets)), np.clip(place.astype(int), 0, RESAMPLES - 1)])
    return ends[0], ends[1]


def _mean_and_error(values: Array) -> Ends:
    return values.mean(axis=-1), values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1])


def _trimmed_mean_and_error(values: Array) -> Ends:
    """Without the fifth at either end, and the error that Yuen gives it."""
    count = values.shape[-1]
    cut = max(count // 5, 1)
    ordered = np.sort(values, axis=-1)
    kept = ordered[..., cut : count - cut]
    error = np.clip(ordered, kept[..., :1], kept[..., -1:]).std(axis=-1, ddof=1) * np.sqrt(count - 1)
    return kept.mean(axis=-1), error / np.sqrt(kept.shape[-1] * (kept.shape[-1] - 1))


def _studentised(mean_and_error: Callable[[Array], Ends], symmetric: bool) -> Callable[[Random, Array], Ends]:
    def interval(random: Random, sets: Array) -> Ends:
        mean, error = mean_and_error(sets)
        again, error_again = mean_and_error(_again(random, sets))
        distance = again - mean[:, None]
        score = np.divide(distance, error_again, out=np.zeros_like(distance), where=error_again > 0)
        if symmetric:
            reach = np.quantile(abs(score), 0.95, axis=1) * error
            return mean - reach, mean + reach
        low, high = _percentiles(score)
        return mean - high * error, mean - low * error

    return interval


def _student(random: Random, sets: Array) -> Ends:
    mean, error = _mean_and_error(sets)
    reach = stats.t.ppf(0.975, sets.shape[1] - 1) * error
    return mean - reach, mean + reach


def _signed_rank(random: Random, sets: Array) -> Ends:
    """The one that was chosen, as the laboratory computes it."""
    ones = np.ones(sets.shape[1])
    found = [statistics.ratio(np.exp(differences).tolist(), ones.tolist()) for differences in sets]
    with np.errstate(divide="ignore"):
        return np.log([one.low for one in found]), np.log([one.high for one in found])


INTERVALS: dict[str, Callable[[Random, Array], Ends]] = {
    "percentile, median": _percentile_median,
    "percentile, mean": _percentile_mean,
    "BCa, mean": _bca_mean,
    "bootstrap-t, mean": _studentised(_mean_and_error, symmetric=False),
    "same, symmetric": _studentised(_mean_and_error, symmetric=True),
    "bootstrap-t, trimmed mean": _studentised(_trimmed_mean_and_error, symmetric=False),
    "Student's t": _student,
    "**signed rank**": _signed_rank,
}

# ---- Rates ---------------------------------------------------------------------------------------------------------


def rates(interval: Callable[[Random, Array], Ends], noise: str, sets: int, rounds: int) -> tuple[float, float]:
    """Share of false alarms, and of slowdowns by 5 % that are found. Every interval here moves with its values."""
    random = np.random.default_rng(10)
    differences = NOISE[noise](random, sets, rounds)
    ends = [interval(random, some) for some in np.array_split(differences, max(sets // 500, 1))]
    low, high = (np.concatenate(side) for side in zip(*ends, strict=True))
    return float(np.mean((low > 0) | (high < 0))), float(np.mean(low + np.log(SLOWDOWN) > 0))


def main() -> None:
    sets = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    for rounds in (10, 6):
        print(f"\n| {rounds} rounds | " + " | ".join(INTERVALS) + " |")
        print("|---" + "|---:" * len(INTERVALS) + "|")
        for noise in NOISE:
            found = [rates(interval, noise, sets, rounds) for interval in INTERVALS.values()]
            print(f"| {noise} | " + " | ".join(f"{100 * f:.1f} / {100 * p:.0f}" for f, p in found) + " |", flush=True)


if __name__ == "__main__":
    main()
