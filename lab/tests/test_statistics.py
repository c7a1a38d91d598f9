from __future__ import annotations

import itertools
import math
import random
import time
from statistics import NormalDist, median

import calibration
import numpy as np
import planning
import pytest
from hakmem import statistics
from hakmem.statistics import Decision, Interval, Verdict
from scipy import stats

SETS = 2000


def runs(differences: calibration.Array) -> tuple[list[float], list[float]]:
    """Values of a candidate and of a baseline with these log ratios."""
    return list(12.5 * np.exp(differences)), [12.5] * len(differences)


def noisy(seed: int, rounds: int = 10, centre: float = 100, noise: float = 0.02) -> list[float]:
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, noise, rounds)))


# ---- What a verdict promises ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", calibration.NOISE)
def test_two_that_are_the_same_are_told_apart_in_at_most_one_of_twenty_sets(noise: str) -> None:
    false_alarms, _ = calibration.rates(calibration._signed_rank, noise, SETS, rounds=10)
    assert false_alarms <= 0.05
    assert false_alarms >= 0.025  # an interval that is wider than it needs to be finds less


@pytest.mark.parametrize("rounds", [6, 7, 8, 13, 20])
def test_false_alarms_at_other_numbers_of_rounds(rounds: int) -> None:
    false_alarms, _ = calibration.rates(calibration._signed_rank, "record, throughput", 1000, rounds)
    assert false_alarms <= 0.05


def test_false_alarms_are_exact_whatever_the_noise() -> None:
    """Two that are the same could as well have been called by each other's name in any round: all 1,024 ways to do
    that to ten rounds of the record are equally likely."""
    one, other, *_ = calibration.residuals("operations_per_s")
    rounds = one - other
    signs = itertools.product((-1, 1), repeat=len(rounds))
    verdicts = [statistics.verdict(statistics.ratio(*runs(rounds * np.array(some)))) for some in signs]
    alarms = sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts)
    assert alarms == 50  # of 1024: 4.9 %


def test_a_slowdown_by_five_percent_is_found_in_ten_rounds_when_runs_scatter_by_two() -> None:
    _, found = calibration.rates(calibration._signed_rank, "normal", 1000, rounds=10)
    assert found >= 0.95


def test_a_slowdown_is_found_on_a_machine_that_drifts_by_more() -> None:
    _, found = calibration.rates(calibration._signed_rank, "drift of 30 %", 1000, rounds=10)
    assert found >= 0.95


@pytest.mark.parametrize("rounds", range(1, 6))
def test_fewer_than_six_rounds_give_an_estimate_and_no_verdict(rounds: int) -> None:
    interval = statistics.ratio([2.0] * rounds, [1.0] * rounds)
    assert interval.estimate == pytest.approx(2)
    assert (interval.low, interval.high) == (0, math.inf)
    assert statistics.verdict(interval) is Verdict.UNDECIDED
    assert statistics.decision(interval) is Decision.UNDECIDED
    assert statistics.minimum_rounds() == 6


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99, statistics.family_confidence(11)])
def test_minimum_rounds_is_where_intervals_begin(confidence: float) -> None:
    rounds = statistics.minimum_rounds(confidence)
    enough, short = noisy(1, rounds), noisy(1, rounds - 1)
    assert statistics.ratio(enough, [100.0] * rounds, confidence=confidence).is_bounded
    assert not statistics.ratio(short, [100.0] * (rounds - 1), confidence=confidence).is_bounded


# ---- Ratios --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_interval_agrees_with_the_signed_rank_test(seed: int) -> None:
    """A ratio just inside the interval is not rejected by the test, one just outside is."""
    candidate, baseline = noisy(seed, 12), noisy(seed + 100, 12)
    interval = statistics.ratio(candidate, baseline)
    assert interval.low <= interval.estimate <= interval.high
    differences = np.log(candidate) - np.log(baseline)
    for end, outwards in ((interval.low, -1e-9), (interval.high, 1e-9)):
        inside, outside = (stats.wilcoxon(differences - math.log(end) - step).pvalue for step in (-outwards, outwards))
        assert inside > 0.05 >= outside


@pytest.mark.parametrize("seed", range(20))
def test_an_interval_of_independent_groups_agrees_with_the_rank_sum_test(seed: int) -> None:
    candidate, baseline = noisy(seed, 9), noisy(seed + 100, 7)
    interval = statistics.ratio(candidate, baseline, paired=False)
    assert interval.low <= interval.estimate <= interval.high
    for end, outwards in ((interval.low, -1e-9), (interval.high, 1e-9)):
        inside, outside = (
            stats.mannwhitneyu(np.log(candidate) - math.log(end) - step, np.log(baseline), method="exact").pvalue
            for step in (-outwards, outwards)
        )
        assert inside > 0.05 >= outside


@pytest.mark.parametrize("digits", [1, 12])
def test_the_interval_of_large_groups_lies_between_two_of_their_differences(digits: int) -> None:
    """So does the one in the middle. Equal values are common."""
    source = random.Random(1)
    first, second = ([round(source.gauss(1, 0.1), digits) for _ in range(count)] for count in (90, 71))
    found = statistics._shift(first, second, 0.95)
    every = sorted(one - other for one in first for other in second)
    spread = math.sqrt(len(every) * (90 + 71 + 1) / 12)
    cut = sum(NormalDist(len(every) / 2, spread).cdf(number + 0.5) <= 0.025 for number in range(len(every)))
    assert (found.low, found.estimate, found.high) == (every[cut - 1], median(every), every[-cut])


def test_groups_of_ten_thousands_are_compared_at_once() -> None:
    source = random.Random(1)
    groups = [[source.lognormvariate(0, 0.1) for _ in range(20_000)] for _ in range(2)]
    start = time.process_time()
    found = statistics.ratio(*groups, paired=False)
    assert found.holds(1) and found.high - found.low < 0.01 and time.process_time() - start < 120


def test_a_ratio_turns_over_with_its_arguments() -> None:
    candidate, baseline = noisy(1), noisy(2)
    there, back = statistics.ratio(candidate, baseline), statistics.ratio(baseline, candidate)
    assert (there.estimate, there.low, there.high) == pytest.approx((1 / back.estimate, 1 / back.high, 1 / back.low))


def test_what_drifts_in_both_does_not_count() -> None:
    baseline = noisy(1)
    drift = np.linspace(1, 3, 10)
    drifting = statistics.ratio(list(1.1 * drift * baseline), list(drift * baseline))
    assert (drifting.low, drifting.high) == pytest.approx((1.1, 1.1))


def test_one_spoilt_round_moves_the_estimate_little() -> None:
    baseline = noisy(1)
    candidate = [value * 1.02 for value in noisy(2)]
    clean = statistics.ratio(candidate, baseline)
    spoilt = statistics.ratio([candidate[0] * 10, *candidate[1:]], baseline)
    assert spoilt.estimate == pytest.approx(clean.estimate, rel=0.02)


def test_equal_values_have_a_ratio_of_exactly_one() -> None:
    assert statistics.ratio([4096.0] * 10, [4096.0] * 10) == Interval(1, 1, 1)
    assert statistics.verdict(statistics.ratio([4096.0] * 10, [4096.0] * 10)) is Verdict.NO_DIFFERENCE


def test_the_mean_over_cases_is_compared_round_by_round() -> None:
    cases = {name: (noisy(seed), noisy(seed + 50, centre=80)) for seed, name in enumerate("abc")}
    mean = statistics.geometric_mean_ratio(cases)
    per_round = [
        [statistics.geometric_mean([pair[side][turn] for pair in cases.values()]) for turn in range(10)]
        for side in (0, 1)
    ]
    whole = statistics.ratio(*per_round)
    assert (mean.estimate, mean.low, mean.high) == pytest.approx((whole.estimate, whole.low, whole.high))
    single = statistics.ratio(*cases["a"])
    assert mean.high - mean.low < single.high - single.low


def test_a_table_of_a_hundred_ratios_is_ready_at_once() -> None:
    candidates = [noisy(seed) for seed in range(100)]
    start = time.process_time()
    for candidate in candidates:
        statistics.ratio(candidate, candidates[0])
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("candidate", "baseline", "message"),
    [
        ([1.0, 2.0], [1.0], "rounds of candidate and baseline differ: 2 and 1"),
        ([], [], "expected one or more finite values"),
        ([1.0, math.nan], [1.0, 1.0], "expected one or more finite values"),
        ([1.0, 0.0], [1.0, 1.0], "a ratio needs values above 0, got 0"),
    ],
)
def test_values_that_have_no_ratio(candidate: list[float], baseline: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        statistics.ratio(candidate, baseline)


def test_cases_with_different_rounds_have_no_mean() -> None:
    with pytest.raises(ValueError, match="rounds of the cases differ"):
        statistics.geometric_mean_ratio({"a": ([1.0], [1.0]), "b": ([1.0, 1.0], [1.0, 1.0])})


# ---- Summaries -----------------------------------------------------------------------------------------------------


def test_summary_of_ten_values() -> None:
    found = statistics.summary([3.0, 1, 2, 10, 5, 6, 7, 8, 9, 4])
    assert (found.count, found.mean, found.median, found.minimum, found.maximum) == (10, 5.5, 5.5, 1, 10)
    assert found.standard_deviation == pytest.approx(np.std(range(1, 11), ddof=1))
    assert found.interval == Interval(5.5, 2, 9)  # of ten values, the second and the last but one: 97.9 %


def test_summary_of_one_value() -> None:
    found = statistics.summary([7.0])
    assert (found.median, found.interval) == (7, Interval(7, -math.inf, math.inf))
    assert math.isnan(found.standard_deviation)


def test_geometric_mean() -> None:
    assert statistics.geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4)


# ---- Verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "of_less", "of_more"),
    [
        (0.90, 0.95, Verdict.FASTER, Verdict.SLOWER),
        (1.05, 1.10, Verdict.SLOWER, Verdict.FASTER),
        (0.99, 1.01, Verdict.NO_DIFFERENCE, Verdict.NO_DIFFERENCE),
        (1.00, 1.01, Verdict.NO_DIFFERENCE, Verdict.NO_DIFFERENCE),
        (0.98, 1.01, Verdict.UNKNOWN, Verdict.UNKNOWN),  # it could be better by more than what is worth a change
        (0.99, 1.02, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (0.50, 2.00, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (0.00, math.inf, Verdict.UNDECIDED, Verdict.UNDECIDED),
    ],
)
def test_verdict(low: float, high: float, of_less: Verdict, of_more: Verdict) -> None:
    interval = Interval((low + high) / 2 if high < 2 else 1, low, high)
    assert statistics.verdict(interval) is of_less
    assert statistics.verdict(interval, less_is_better=False) is of_more


@pytest.mark.parametrize(
    ("estimate", "low", "high", "expected"),
    [
        (0.95, 0.93, 0.97, Decision.GO),
        (1.05, 1.03, 1.07, Decision.NO_GO),
        (0.989, 0.98, 0.999, Decision.GO),
        (0.992, 0.99, 0.994, Decision.NEUTRAL),  # shown, but too small to matter
        (1.0, 0.99, 1.01, Decision.NEUTRAL),  # shown to be no more than that
        (0.992, 0.98, 0.999, Decision.UNKNOWN),  # shown, but it may be too small to matter
        (0.95, 0.89, 1.01, Decision.UNKNOWN),  # large, but not shown
        (1.0, 0.9, 1.1, Decision.UNKNOWN),  # it could be anything
    ],
)
def test_decision(estimate: float, low: float, high: float, expected: Decision) -> None:
    interval = Interval(estimate, low, high)
    assert statistics.decision(interval) is expected


def test_decision_at_another_threshold() -> None:
    assert statistics.decision(Interval(0.95, 0.94, 0.96), threshold=0.1) is Decision.NEUTRAL


def test_verdicts_of_one_table_are_wrong_together_as_seldom_as_one() -> None:
    count, tables = 8, 400
    confidence = statistics.family_confidence(count)
    assert confidence == pytest.approx(1 - 0.05 / 8)
    random = np.random.default_rng(4)
    alarms = [
        any(
            not statistics.ratio(*runs(row), confidence=confidence).holds(1)
            for row in calibration.NOISE["normal"](random, count, 10)
        )
        for _ in range(tables)
    ]
    assert np.mean(alarms) <= 0.05


# ---- Several switches ----------------------------------------------------------------------------------------------


def test_effects_of_two_switches_whose_gains_do_not_add_up() -> None:
    """3.5 % and 21.8 % alone, 6.4 % together."""
    drift = np.linspace(1, 1.3, 10)
    levels: dict[tuple[int, ...], list[float]] = {
        key: list(drift * value) for key, value in {(0, 0): 100.0, (1, 0): 103.5, (0, 1): 121.8, (1, 1): 106.4}.items()
    }
    first, second, both = statistics.effects(levels, ["K1", "K2"])
    assert [one.factors for one in (first, second, both)] == [("K1",), ("K2",), ("K1", "K2")]
    assert first.interval.estimate == pytest.approx(math.sqrt(1.035 * 1.064 / 1.218))
    assert second.interval.estimate == pytest.approx(math.sqrt(1.218 * 1.064 / 1.035))
    assert both.interval.estimate == pytest.approx(1.064 / (1.035 * 1.218))


def test_effects_of_three_switches_find_what_was_put_in() -> None:
    names = ["a", "b", "c"]
    levels: dict[tuple[int, ...], list[float]] = {
        key: noisy(17 + index, 12, centre=100 * 1.1 ** key[0] * 0.8 ** (key[1] * key[2]), noise=0.01)
        for index, key in enumerate(itertools.product((0, 1), repeat=3))
    }
    found = {one.factors: one.interval for one in statistics.effects(levels, names)}
    assert len(found) == 7
    assert found["a",].holds(1.1) and not found["a",].holds(1)
    assert found["b", "c"].holds(0.8) and not found["b", "c"].holds(1)
    assert found["b",].holds(math.sqrt(0.8))
    assert all(found[key].holds(1) for key in [("a", "b"), ("a", "c"), ("a", "b", "c")])


def test_a_switch_without_effect_on_exact_values_shows_none() -> None:
    """Sums of logarithms in any order: an error of arithmetic is no effect."""
    for order in itertools.permutations(itertools.product((0, 1), repeat=2)):
        levels: dict[tuple[int, ...], list[float]] = {key: [3.3 if key[0] else 7.7] * 10 for key in order}
        _, second, both = statistics.effects(levels, ["a", "b"])
        assert (second.interval, both.interval) == (Interval(1, 1, 1), Interval(1, 1, 1))


@pytest.mark.parametrize("levels", [{(0,): [1.0]}, {(0,): [1.0], (2,): [1.0]}, {(0,): [1.0], (1,): [1.0, 2.0]}])
def test_effects_need_the_whole_design(levels: dict[tuple[int, ...], list[float]]) -> None:
    with pytest.raises(ValueError, match="combinations"):
        statistics.effects(levels, ["a"])


# ---- Planning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "noise"), [(6, 0.02), (10, 0.03), (16, 0.04)])
def test_planned_power_is_the_power_there_is(rounds: int, noise: float) -> None:
    random = np.random.default_rng(5)
    differences = random.normal(math.log(1.05), noise * math.sqrt(2), (2000, rounds))
    found = np.mean([statistics.ratio(*runs(row)).low > 1 for row in differences])
    assert planning.power_of(rounds, noise, 0.05) == pytest.approx(found, abs=0.03)


def test_rounds_needed() -> None:
    for noise, effect, power in [(0.02, 0.05, 0.95), (0.02, 0.01, 0.95), (0.05, 0.1, 0.8)]:
        rounds = planning.rounds_needed(noise, effect, power)
        assert planning.power_of(rounds, noise, effect) >= power > planning.power_of(rounds - 1, noise, effect)
    assert planning.rounds_needed(0.0001, 0.5) == planning.rounds_needed(0, 0.5) == 6
    assert planning.power_of(5, 0.0001, 0.5) == 0
    with pytest.raises(ValueError, match="no number of rounds"):
        planning.rounds_needed(0.02, 0)


# ---- Blocks ----------------------------------------------------------------------------------------------------------


def test_the_chances_of_blocks_are_those_of_all_signs() -> None:
    """Ranks within each block: every pattern of signs of 3 and 4 rounds is as likely as each other one."""
    ways = [0] * (6 + 10 + 1)
    for signs in itertools.product((0, 1), repeat=7):
        ways[sum(s * r for s, r in zip(signs, (1, 2, 3, 1, 2, 3, 4), strict=True))] += 1
    expected = [sum(ways[: number + 1]) / 2**7 for number in range(len(ways))]
    assert statistics._signed_rank_distribution(3, 4) == pytest.approx(expected)
    assert statistics.ratio([2.0] * 6, [1.0] * 6, blocks=["a"] * 6) == statistics.ratio([2.0] * 6, [1.0] * 6)


def test_rounds_of_two_machines_are_not_averaged_with_each_other() -> None:
    """The machines disagree: half of the cost on one, twice on the other. No average of the two is an estimate."""
    found = statistics.ratio([0.5] * 7 + [2.0] * 3, [1.0] * 10, blocks=["a"] * 7 + ["b"] * 3)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.5, 0.5, 2.0))
    assert statistics.ratio([0.5] * 7 + [2.0] * 3, [1.0] * 10).high == pytest.approx(1)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (9, 2, 1), (6, 6)])
def test_false_alarms_with_machines_of_different_noise(sizes: tuple[int, ...]) -> None:
    source = random.Random(1)
    blocks = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    noise = [(0.01, 0.3, 0.05)[int(block)] for block in blocks]
    alarms = 0
    for _ in range(2000):
        values = [math.exp(source.gauss(0, one)) for one in noise]
        alarms += not statistics.ratio(values, [1.0] * len(values), blocks=blocks).holds(1)
    assert alarms / 2000 < 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
