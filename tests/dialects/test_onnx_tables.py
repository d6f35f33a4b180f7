"""ONNX's tables against the specification's formulas, one scalar at a time, bit for bit."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire import ops
from gradwire.ops import onnx
from support.oracles.dialect_oracles import Matrix, lowered
from support.oracles.onnx_oracles import Axis, matrix

LENGTHS = st.integers(1, 40)
KINDS: dict[str, Any] = {"spec_float64": np.float64, "float32": np.float32}
TRANSFORMATIONS = get_args(onnx.CoordinateTransformationMode)
ROIS = st.tuples(*[st.sampled_from([0.0, 0.25, 0.75, 1.0]) | st.floats(-0.5, 1.5, width=32)] * 2)
ARITHMETIC = pytest.mark.parametrize("arithmetic", KINDS)
EACH = pytest.mark.parametrize("transformation", TRANSFORMATIONS)


def by_size(kind: Any, inputs: int, outputs: int, roi: tuple[float, float] = (0, 1)) -> Axis:
    """Return an axis that is given its size; by the specification that is its width."""
    scale = kind(outputs) / kind(inputs)
    width = scale * kind(inputs) if kind is np.float32 else kind(outputs)
    return Axis(inputs, outputs, scale, width, roi)


def by_scale(kind: Any, inputs: int, scale: float) -> Axis:
    """Return an axis that is given its scale."""
    width = kind(scale) * kind(inputs)
    return Axis(inputs, math.floor(width), kind(scale), width, (0, 1))


def table(axis: Axis, **attributes: Any) -> Matrix:
    """Return our table of a tensor of one axis."""
    operator = ops.OnnxResize(**attributes)
    plan = lowered(operator, (axis.inputs,), (axis.outputs,), np.float32)
    for each in plan.passes:
        return each.map.dense()
    return np.eye(axis.inputs)


def left_alone(axis: Axis, arithmetic: str) -> bool:
    """Tell whether no formula is asked."""
    if axis.inputs != axis.outputs:
        return False
    return arithmetic == "float32" or (axis.scale == 1 and axis.roi == (0, 1))


def check(axis: Axis, transformation: Any, arithmetic: Any, sizing: Any) -> None:
    """Compare all ways of reading along one axis."""
    common = {"coordinate_transformation_mode": transformation, "arithmetic": arithmetic}
    if transformation == "tf_crop_and_resize":
        common["roi"] = axis.roi
    for extra in (
        *({"mode": "nearest", "nearest_mode": each} for each in get_args(onnx.NearestMode)),
        {"mode": "linear"},
        {"mode": "cubic", "cubic_coeff_a": -0.6},
        {"mode": "cubic", "exclude_outside": True},
    ):
        words: dict[str, Any] = dict(extra)
        a = float(np.float32(words.pop("cubic_coeff_a", -0.75)))
        expected = matrix(axis, transformation, words.pop("mode"), a=a, **words)
        if left_alone(axis, arithmetic):
            expected = np.eye(axis.inputs)
        ours = table(axis, **common, **sizing, **extra)
        np.testing.assert_array_equal(ours, expected, err_msg=str(extra))


@ARITHMETIC
@EACH
@settings(deadline=None, max_examples=25)
@given(inputs=LENGTHS, outputs=LENGTHS, roi=ROIS)
@example(inputs=7, outputs=17, roi=(0, 1))
@example(inputs=10, outputs=14, roi=(0, 1))
@example(inputs=20, outputs=6, roi=(1, 0))
@example(inputs=1, outputs=1, roi=(0.5, 0.5))
def test_tables_by_size_follow_the_formula(
    arithmetic: str, transformation: str, inputs: int, outputs: int, roi: tuple[float, float]
) -> None:
    if transformation != "tf_crop_and_resize":
        roi = (0, 1)
    axis = by_size(KINDS[arithmetic], inputs, outputs, roi)
    check(axis, transformation, arithmetic, {"sizes": (outputs,)})


@ARITHMETIC
@EACH
@settings(deadline=None, max_examples=25)
@given(inputs=LENGTHS, factor=st.floats(0, 4))
@example(inputs=19, factor=0.25)
@example(inputs=7, factor=0.5)
@example(inputs=2, factor=1.25)
def test_tables_by_scale_follow_the_formula(
    arithmetic: str, transformation: str, inputs: int, factor: float
) -> None:
    scale = float(np.float32(max(factor, 1.01 / inputs)))
    axis = by_scale(KINDS[arithmetic], inputs, scale)
    check(axis, transformation, arithmetic, {"scales": (scale,)})


@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@settings(deadline=None)
@given(inputs=LENGTHS, outputs=LENGTHS)
@example(inputs=40, outputs=1)
@example(inputs=1, outputs=3)
def test_antialias_weighs_a_stretched_filter(
    mode: Any, inputs: int, outputs: int, exclude_outside: Any
) -> None:
    # Every element within reach of x and far beyond, with rational coordinates rounded once.
    stretch = max(1, inputs / outputs)
    expected = np.zeros((outputs, inputs))
    for index in range(outputs):
        x = ((2 * index + 1) * inputs - outputs) / (2 * outputs)
        reach = np.arange(math.floor(x - 3 * stretch), math.ceil(x + 3 * stretch) + 1)
        distance = np.abs(reach - x) / stretch
        weight = np.maximum(1 - distance, 0)
        if mode == "cubic":
            inside = (1.25 * distance - 2.25) * distance * distance + 1
            outside = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
            weight = np.where(distance <= 1, inside, np.where(distance < 2, outside, 0))
        if exclude_outside:
            weight[(reach < 0) | (reach >= inputs)] = 0
        np.add.at(expected[index], np.clip(reach, 0, inputs - 1), weight / weight.sum())
    axis = by_size(np.float64, inputs, outputs)
    common: dict[str, Any] = {"mode": mode, "antialias": True, "exclude_outside": exclude_outside}
    ours = table(axis, sizes=(outputs,), **common)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-13)
    in_float32 = table(axis, sizes=(outputs,), arithmetic="float32", **common)
    np.testing.assert_allclose(in_float32, expected, rtol=0, atol=2e-5)
