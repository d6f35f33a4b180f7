"""Tables against formulas, one float32 scalar at a time, and rounding rules where they part."""

from __future__ import annotations

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


# Ties, and numbers whose sum or difference with 0.5 is no float32.
NEARLY_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))
ROUNDED: list[tuple[Rounding, list[float], list[int]]] = [
    (sampling.half_down, [-2.5, -1.5, 0.5, 1.5, 8388609], [-3, -2, 0, 1, 8388608]),
    (sampling.half_up, [-2.5, -1.5, 0.5, 1.5, NEARLY_HALF, 8388609], [-2, -1, 1, 2, 1, 8388610]),
    (sampling.half_away, [-2.5, -1.5, 0.5, 1.5, NEARLY_HALF, 8388609], [-3, -2, 1, 2, 0, 8388609]),
]


@pytest.mark.parametrize(("rounding", "x", "expected"), ROUNDED)
def test_roundings_part_where_their_names_say(
    rounding: Rounding, x: list[float], expected: list[int]
) -> None:
    np.testing.assert_array_equal(rounding(f32(x)), f32(expected))
