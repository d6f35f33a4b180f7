"""Tables against formulas, one float32 scalar at a time, and rounding rules where they part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire import ops
from gradwire_server.plans import sampling
from gradwire_server.plans.sampling import Rounding
from support.oracles.dialect_oracles import (
    DML_RULES,
    Tensor,
    axis_table,
    dml_axis,
    dml_operators,
    f32,
    onednn_axis,
)

LENGTHS = st.integers(1, 60)
SCALES = st.one_of(
    st.floats(2**-7, 128, width=32),
    st.tuples(LENGTHS, LENGTHS).map(
        lambda ratio: float(np.float32(ratio[0]) / np.float32(ratio[1]))
    ),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False, width=32),
)
OFFSETS = st.one_of(
    st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0]),
    st.floats(-70, 70, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@pytest.mark.parametrize("rule", DML_RULES)
@settings(deadline=None)
@given(inputs=LENGTHS, outputs=LENGTHS, scale=SCALES, offsets=st.tuples(OFFSETS, OFFSETS))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.5, -0.5))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.0, 0.0))
@example(inputs=3, outputs=3, scale=1.0, offsets=(-0.5, 0.5))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.5, 0.5))
@example(inputs=4, outputs=2, scale=0.5, offsets=(0.5, -0.5))
@example(inputs=4, outputs=5, scale=SMALLEST, offsets=(0.5, -0.5))
@example(inputs=4, outputs=5, scale=1e-30, offsets=(-LARGEST, LARGEST))
@example(inputs=4, outputs=5, scale=LARGEST, offsets=(LARGEST, -LARGEST))
def test_dml_tables_follow_the_formula(
    rule: str, inputs: int, outputs: int, scale: float, offsets: tuple[float, float]
) -> None:
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=offsets, rule=rule)
    for pair in dml_operators(rule, scales=(scale,), offsets=offsets):
        forward = axis_table(pair.forward, (inputs,), (outputs,))
        np.testing.assert_array_equal(forward, matrix)
        np.testing.assert_array_equal(axis_table(pair.gradient, (outputs,), (inputs,)), matrix.T)


@pytest.mark.parametrize("rule", DML_RULES)
@settings(deadline=None)
@given(inputs=LENGTHS, outputs=LENGTHS)
def test_dml_defaults_follow_the_formula(rule: str, inputs: int, outputs: int) -> None:
    scale = float(np.float32(outputs) / np.float32(inputs))
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=(0.5, -0.5), rule=rule)
    for pair in dml_operators(rule):
        forward = axis_table(pair.forward, (inputs,), (outputs,))
        np.testing.assert_array_equal(forward, matrix)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@settings(deadline=None)
@given(src=st.integers(1, 200), dst=st.integers(1, 200))
@example(src=28, dst=2)
@example(src=1, dst=1)
# Dividing before the product of half_pixel reads another element for one output.
@example(src=3619, dst=3912)
# Equal sizes are no identity: this product rounds.
@example(src=2897, dst=2897)
def test_onednn_tables_follow_the_formula(
    transformation: Any, mode: Any, src: int, dst: int
) -> None:
    matrix = onednn_axis(
        src, dst, align_corners=transformation == "align_corners", nearest=mode == "nearest"
    )
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": transformation,
        "data_format": "NCX",
    }
    forward = axis_table(ops.Interpolate(sizes=(dst,), **attributes), (1, 1, src), (1, 1, dst), 2)
    np.testing.assert_array_equal(forward, matrix)
    backward = axis_table(ops.InterpolateBackward(**attributes), (1, 1, dst), (1, 1, src), 2)
    np.testing.assert_array_equal(backward, matrix.T)


TIES = f32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (sampling.half_down, [-3, -2, -1, 0, 1, 2]),
        (sampling.half_up, [-2, -1, 0, 1, 2, 3]),
        (sampling.half_away, [-3, -2, -1, 1, 2, 3]),
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
    low = sampling.on_axis(np.floor(x), inputs=3)
    linear = sampling.linear_taps(np.array([low, low + 1]), upper_weight=x - np.floor(x))
    assert linear.weight.dtype == kind
    np.testing.assert_array_equal(linear.weight, [[0.75, 0.25], [0.25, 0.75]])
    np.testing.assert_array_equal(linear.index, [[0, 1], [1, 2]])
