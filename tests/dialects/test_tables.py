"""Tables against the frameworks' formulas, one float32 scalar at a time, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire import ops
from support.oracles.dialect_oracles import (
    DML_RULES,
    Matrix,
    dml_axis,
    dml_operators,
    lowered,
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


def table(
    operator: ops.Operator, shapes: tuple[tuple[int, ...], tuple[int, ...]], axis: int
) -> Matrix:
    """Return what an operator does along one axis; an axis left alone is the identity."""
    plan = lowered(operator, *shapes)
    assert (plan.input_shape, plan.output_shape) == shapes
    for each in plan.passes:
        if each.axis == axis:
            return each.map.dense()
    return np.eye(shapes[0][axis])


@pytest.mark.parametrize("rule", DML_RULES)
@settings(deadline=None)
@given(inputs=LENGTHS, outputs=LENGTHS, scale=SCALES, offsets=st.tuples(OFFSETS, OFFSETS))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.5, -0.5))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.0, 0.0))
@example(inputs=3, outputs=3, scale=1.0, offsets=(-0.5, 0.5))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.5, 0.5))
@example(inputs=4, outputs=2, scale=0.5, offsets=(0.5, -0.5))
def test_dml_tables_follow_the_formula(
    rule: str, inputs: int, outputs: int, scale: float, offsets: tuple[float, float]
) -> None:
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=offsets, rule=rule)
    for pair in dml_operators(rule, scales=(scale,), offsets=offsets):
        forward = table(pair.forward, ((inputs,), (outputs,)), 0)
        np.testing.assert_array_equal(forward, matrix)
        np.testing.assert_array_equal(table(pair.gradient, ((outputs,), (inputs,)), 0), matrix.T)


@pytest.mark.parametrize("rule", DML_RULES)
@settings(deadline=None)
@given(inputs=LENGTHS, outputs=LENGTHS)
def test_dml_defaults_follow_the_formula(rule: str, inputs: int, outputs: int) -> None:
    scale = float(np.float32(outputs) / np.float32(inputs))
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=(0.5, -0.5), rule=rule)
    for pair in dml_operators(rule):
        forward = table(pair.forward, ((inputs,), (outputs,)), 0)
        np.testing.assert_array_equal(forward, matrix)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@settings(deadline=None)
@given(src=st.integers(1, 200), dst=st.integers(1, 200))
@example(src=28, dst=2)
@example(src=1, dst=1)
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
    forward = table(ops.Interpolate(sizes=(dst,), **attributes), ((1, 1, src), (1, 1, dst)), 2)
    np.testing.assert_array_equal(forward, matrix)
    backward = table(ops.InterpolateBackward(**attributes), ((1, 1, dst), (1, 1, src)), 2)
    np.testing.assert_array_equal(backward, matrix.T)
