"""Numbers and amounts as people read them."""

from __future__ import annotations

import math

import pytest
from hakmem import words
from hakmem.statistics import Interval


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (4567, "4,567"),
        (999.96, "1,000"),
        (999.94, "999.9"),
        (99.996, "100.0"),
        (99.994, "99.99"),
        (1, "1.00"),
        (0.9996, "1.00"),
        (0.9994, "0.999"),
        (0.0123, "0.0123"),
    ],
)
def test_what_is_rounded_up_has_the_figures_of_what_it_becomes(value: float, said: str) -> None:
    assert words.figures(value) == said


def test_a_slow_rate_is_not_none() -> None:
    said = [words.amount(value, "1/s") for value in (0.4, 45.6, 4567, 12.3e6)]
    assert said == ["0.4 /s", "45.60 /s", "4,567 /s", "12.30 M/s"]


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(0.9, 0.88, 0.92), "0.900 (0.880-0.920)"),
        (Interval(0.99957, 0.9994, 0.9998), "0.9996 (0.9994-0.9998)"),
        (Interval(1.004, 1.0002, 1.009), "1.0040 (1.0002-1.0090)"),
        (Interval(1.0002, 0.9999, 1.0004), "1.000 (1.000-1.000)"),
        (Interval(1.0, 1.0, 1.0), "1.000 (1.000-1.000)"),
        (Interval(0.5, 0.0, math.inf), "0.500"),
    ],
)
def test_what_is_shown_to_differ_from_one_does_not_read_as_one(interval: Interval, said: str) -> None:
    assert words.ratio(interval) == said


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(1.05, 0.98, 1.1), "+5.0 % (-2.0 to +10.0 %)"),
        (Interval(1.004, 1.0002, 1.009), "+0.40 % (+0.02 to +0.90 %)"),
        (Interval(0.99957, 0.9994, 0.9998), "-0.04 % (-0.06 to -0.02 %)"),
        (Interval(1.0002, 0.9999, 1.0004), "+0.0 % (-0.0 to +0.0 %)"),
        (Interval(0.95, 0.0, math.inf), "-5.0 %"),
    ],
)
def test_a_change_has_its_interval_where_there_is_one_and_does_not_read_as_none(interval: Interval, said: str) -> None:
    assert words.change(interval) == said
