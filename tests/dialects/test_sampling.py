"""Rounding rules at the numbers where they part, and indices that never leave their axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.plans import sampling
from gradwire_server.plans.sampling import Rounding
from support.oracles.dialect_oracles import Tensor, f32

TIES = f32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (sampling.half_down, [-3, -2, -1, 0, 1, 2]),
        (sampling.half_up, [-2, -1, 0, 1, 2, 3]),
        (sampling.half_away, [-3, -2, -1, 1, 2, 3]),
        (sampling.floor, [-3, -2, -1, 0, 1, 2]),
        (sampling.ceil, [-2, -1, 0, 1, 2, 3]),
    ],
)
def test_ties_go_where_the_name_says(rounding: Rounding, expected: list[int]) -> None:
    np.testing.assert_array_equal(rounding(TIES), f32(expected))


@settings(deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_half_away_is_exact_on_every_float32(x: float) -> None:
    # Of a float32 this sum is exact in float64, or so large that x is whole already.
    exact = math.copysign(math.floor(abs(x) + 0.5), x)
    assert float(sampling.half_away(f32([x]))[0]) == exact


@pytest.mark.parametrize("x", [np.nextafter(np.float32(0.5), np.float32(0)), 8388609])
def test_half_up_rounds_its_sum_as_float32_does(x: float) -> None:
    assert sampling.half_up(f32([x]))[0] == math.floor(x) + 1
    assert sampling.half_away(f32([x]))[0] == math.floor(x)


def test_half_down_rounds_its_difference_as_float32_does() -> None:
    # 8388608.5 is no float32: the difference rounds to the even neighbor.
    assert sampling.half_down(f32([8388609]))[0] == 8388608


def test_coordinates_outside_go_to_the_nearer_edge() -> None:
    x = f32([-np.inf, -1e30, -1, 0, 4, 5, 1e30, np.inf])
    np.testing.assert_array_equal(sampling.on_axis(x, inputs=5), [0, 0, 0, 0, 4, 4, 4, 4])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_taps_keep_the_type_of_the_coordinates(kind: Any) -> None:
    x: Tensor = np.array([0.25, 1.75], kind)
    nearest = sampling.nearest_taps(sampling.half_up(x), inputs=3)
    assert nearest.weight.dtype == kind
    low = sampling.on_axis(sampling.floor(x), inputs=3)
    linear = sampling.linear_taps(np.array([low, low + 1]), upper_weight=x - sampling.floor(x))
    assert linear.weight.dtype == kind
    np.testing.assert_array_equal(linear.weight, [[0.75, 0.25], [0.25, 0.75]])
    np.testing.assert_array_equal(linear.index, [[0, 1], [1, 2]])
