"""The judgement of `python -m benchmarks compare`, on numbers a reader can check."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.compare.judgement import Better, judge


@pytest.mark.parametrize(
    ("better", "ours"), [("lower", [1.2] * 10), ("higher", [0.8] * 10)], ids=str
)
def test_a_fifth_in_every_pair_is_worse(better: Better, ours: list[float]) -> None:
    assert judge(ours, [1.0] * 10, better=better).worse


@pytest.mark.parametrize(
    ("better", "ours"), [("lower", [1.09] * 10), ("higher", [0.92] * 10), ("lower", [0.5] * 10)]
)
def test_less_than_a_tenth_and_gains_are_not_worse(better: Better, ours: list[float]) -> None:
    assert not judge(ours, [1.0] * 10, better=better).worse


@pytest.mark.parametrize(("gains", "worse"), [(0, True), (1, True), (2, False), (5, False)])
def test_of_ten_pairs_at_most_one_may_be_a_gain(gains: int, worse: bool) -> None:  # noqa: FBT001
    ours = [0.9] * gains + [1.3] * (10 - gains)
    assert judge(ours, [1.0] * 10, better="lower").worse is worse


def test_ratios_are_of_pairs_so_that_drift_of_the_machine_cancels() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 4.0, 2.0, 1.0, 3.0, 5.0, 7.0]
    found = judge([1.05 * one for one in drift], drift, better="lower")
    assert (found.ratio, found.low, found.high) == pytest.approx((1.05, 1.05, 1.05))
    assert not found.worse


@pytest.mark.parametrize("count", [6, 10, 15, 20])
def test_the_interval_holds_the_median_of_the_distribution_as_often_as_it_claims(
    count: int,
) -> None:
    draw = random.Random(0)  # noqa: S311 - no secret
    held = 0
    for _ in range(2000):
        ours = [math.exp(draw.gauss(0, 0.3)) for _ in range(count)]
        found = judge(ours, [1.0] * count, better="lower")
        held += found.low <= 1 <= found.high
    assert held >= 0.94 * 2000


def test_zero_beside_zero_is_a_ratio_of_one() -> None:
    assert judge([0.0] * 6, [0.0] * 6, better="lower").ratio == 1
