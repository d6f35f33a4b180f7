"""ONNX's operators: rules, and tables against the specification's formulas, bit for bit."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire import ops
from gradwire.ops import onnx
from gradwire_server import dialects
from gradwire_server.errors import RequestLimitError
from support.oracles.dialect_oracles import Matrix, axis_table, evaluate, lowered
from support.oracles.onnx_oracles import Axis, matrix

ARITHMETIC = pytest.mark.parametrize("arithmetic", ["spec_float64", "float32"])


def shape(source: tuple[int, ...], **attributes: Any) -> tuple[int, ...] | None:
    return dialects.output_shape("onnx_resize", ops.OnnxResize(**attributes), source)


NOT_LARGER: dict[str, Any] = {"keep_aspect_ratio_policy": "not_larger"}
NOT_SMALLER: dict[str, Any] = {"keep_aspect_ratio_policy": "not_smaller"}


@pytest.mark.parametrize(
    ("attributes", "source", "result"),
    [
        ({"axes": (3, 2), "sizes": (8, 7)}, (1, 3, 4, 6), (1, 3, 7, 8)),
        ({"axes": (3, 2), "sizes": (8, 7), **NOT_LARGER}, (1, 3, 4, 6), (1, 3, 5, 8)),
        ({"axes": (3, 2), "sizes": (8, 7), **NOT_SMALLER}, (1, 3, 4, 6), (1, 3, 7, 11)),
        # Halves go up.
        ({"sizes": (3, 6), **NOT_LARGER}, (2, 3), (3, 5)),
        ({"scales": (2, 0.5), **NOT_LARGER}, (4, 6), (8, 3)),
    ],
    ids=str,
)
def test_sizes_keep_the_aspect_ratio_and_scales_do_not(
    attributes: dict[str, Any], source: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert shape(source, **attributes) == result


def test_a_gradient_without_sizes_is_that_of_a_stretch_to_its_shape() -> None:
    g = np.random.default_rng(1).standard_normal((2, 7))
    given: dict[str, Any] = {"mode": "cubic", "axes": (-1,)}
    expected = evaluate(ops.OnnxResizeGrad(sizes=(7,), **given), g, (2, 4))
    np.testing.assert_array_equal(evaluate(ops.OnnxResizeGrad(**given), g, (2, 4)), expected)


@ARITHMETIC
def test_a_roi_is_read_by_tf_crop_and_resize_alone(arithmetic: Any) -> None:
    x = np.arange(5.0)
    given: dict[str, Any] = {"mode": "linear", "sizes": (9,), "arithmetic": arithmetic}
    expected = evaluate(ops.OnnxResize(**given), x, (9,))
    ours = evaluate(ops.OnnxResize(roi=(0.5, 1), extrapolation_value=7, **given), x, (9,))
    np.testing.assert_array_equal(ours, expected)


@ARITHMETIC
def test_tf_crop_and_resize_without_a_roi_reads_all(arithmetic: Any) -> None:
    operator = ops.OnnxResize(
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        sizes=(9,),
        arithmetic=arithmetic,
    )
    np.testing.assert_array_equal(evaluate(operator, np.arange(5.0), (9,)), np.arange(9) / 2)


@ARITHMETIC
@pytest.mark.parametrize("antialias", [False, True])
def test_a_roi_may_run_backward(arithmetic: Any, antialias: Any) -> None:
    operator = ops.OnnxResize(
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        roi=(1, 0),
        sizes=(3,),
        antialias=antialias,
        arithmetic=arithmetic,
    )
    forward = evaluate(operator, np.arange(5.0), (3,))
    np.testing.assert_allclose(forward[1], 2)
    assert forward[0] > forward[1] > forward[2]


def test_elements_that_are_all_left_out_make_zero() -> None:
    operator = ops.OnnxResize(
        nearest_mode="ceil", exclude_outside=True, sizes=(8,), extrapolation_value=7
    )
    forward = evaluate(operator, np.arange(1.0, 5), (8,))
    np.testing.assert_array_equal(forward, [1, 2, 2, 3, 3, 4, 4, 0])


def test_float32_has_a_longest_axis_and_float64_has_none() -> None:
    source, result = (2**23 + 2,), (2,)
    spec = ops.OnnxResize(mode="linear", sizes=result)
    assert lowered(spec, source, result, np.float32).output_shape == result
    in_float32 = ops.OnnxResize(mode="linear", sizes=result, arithmetic="float32")
    with pytest.raises(RequestLimitError, match="max-float32-axis"):
        lowered(in_float32, source, result, np.float32)


def test_antialias_over_a_long_axis_takes_little_time_and_its_weights_sum_to_1() -> None:
    source, result = (10**6,), (1,)
    for mode in "linear", "cubic":
        operator = ops.OnnxResize(mode=mode, antialias=True, sizes=result)
        (only,) = lowered(operator, source, result, np.float64).passes
        assert only.map.nnz == 10**6
        np.testing.assert_allclose(only.map.weight.sum(), 1, rtol=1e-9)


CROP: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "sizes": (1, 5)}
MIDDLE_HALF = {**CROP, "roi": (0, 0.25, 1, 0.75)}
NEARLY_HALF = {**CROP, "roi": (0, 0, 1, np.nextafter(np.float32(0.75), 1)), "sizes": (1, 2)}
SINGLE = {"coordinate_transformation_mode": "pytorch_half_pixel", "sizes": (1,)}
CORNERS = {"coordinate_transformation_mode": "align_corners", "scales": (1, 0.5)}
STEEP = {"mode": "cubic", "cubic_coeff_a": -0.6}
ROW = np.arange(11.0)[np.newaxis]
STRIPES = np.array([[1e6], [0], [1e6]])

# Attributes, input, results in float32 and by the specification, which frameworks depart from as
# conformance/deviations.toml shows. FLOAT32 follows ONNX Runtime, save in the last row.
DEVIATIONS: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
    "a whole coordinate that float64 rounds": (
        {"mode": "linear", "sizes": (14,)},
        *(np.arange(10.0), None, np.clip((np.arange(14) + 0.5) * 10 / 14 - 0.5, 0, 9)),
    ),
    "one output": (
        {"mode": "linear", "exclude_outside": True, "antialias": True, **SINGLE},
        *([1.0, 2, 4], None, [(3 + 2 * 2 + 4) / 6]),
    ),
    "one output, a scale that float64 rounds": (
        {"mode": "linear", **SINGLE},
        *(np.arange(49.0), None, [0]),
    ),
    "cubic weights of float64": ({**STEEP, "sizes": (7,)}, np.ones(4), None, np.ones(7)),
    "a length that float32 rounds up": (
        {"scales": (1, 0.7)},
        *(np.zeros((1, 10)), np.zeros((1, 7)), np.zeros((1, 6))),
    ),
    "a roi, nearest": (
        {"mode": "nearest", **MIDDLE_HALF},
        *(ROW[:, :5], ROW[:, :5], [[1, 1, 2, 2, 3]]),
    ),
    **{
        f"a roi, {mode}": (
            {"mode": mode, **MIDDLE_HALF},
            *(ROW[:, :5], ROW[:, :5], [[1, 1.5, 2, 2.5, 3]]),
        )
        for mode in ("linear", "cubic")
    },
    "a length that is cut": (
        {"mode": "linear", **CORNERS},
        *(ROW[:, :7], [[0, 3, 6]], [[0, 2.4, 4.8]]),
    ),
    "nearly half": (NEARLY_HALF, ROW, [[0, 7]], [[0, 8]]),
    "rows of scale 1": (
        {**STEEP, "scales": (1, 2)},
        *(STRIPES.repeat(8, axis=1), STRIPES.repeat(16, axis=1), STRIPES.repeat(16, axis=1)),
    ),
}


@pytest.mark.parametrize(
    ("attributes", "x", "single", "double"), DEVIATIONS.values(), ids=list(DEVIATIONS)
)
def test_results_where_frameworks_depart_from_the_specification(
    attributes: dict[str, Any], x: Any, single: Any, double: Any
) -> None:
    for arithmetic, dtype, expected, far in (
        ("float32", np.float32, single, 1e-6),
        ("spec_float64", np.float64, double, 1e-14),
    ):
        if expected is not None:
            given = np.asarray(x, dtype)
            kind: dict[str, Any] = {**attributes, "arithmetic": arithmetic}
            assert shape(given.shape, **kind) == np.shape(expected)
            result = evaluate(ops.OnnxResize(**kind), given, np.shape(expected))
            np.testing.assert_allclose(result, expected, rtol=far)


LENGTHS = st.integers(1, 40)
KINDS: dict[str, Any] = {"spec_float64": np.float64, "float32": np.float32}
TRANSFORMATIONS = get_args(onnx.CoordinateTransformationMode)
ROIS = st.tuples(*[st.sampled_from([0.0, 0.25, 0.75, 1.0]) | st.floats(-0.5, 1.5, width=32)] * 2)
EACH = pytest.mark.parametrize("transformation", TRANSFORMATIONS)


def by_size(kind: Any, inputs: int, outputs: int, roi: tuple[float, float] = (0, 1)) -> Axis:
    """Return an axis that is given its size; by the specification that is its width."""
    scale = kind(outputs) / kind(inputs)
    width = scale * kind(inputs) if kind is np.float32 else kind(outputs)
    return Axis(inputs, outputs, scale, width, roi)


def by_scale(kind: Any, inputs: int, scale: float) -> Axis:
    width = kind(scale) * kind(inputs)
    return Axis(inputs, math.floor(width), kind(scale), width, (0, 1))


def table(axis: Axis, **attributes: Any) -> Matrix:
    return axis_table(ops.OnnxResize(**attributes), (axis.inputs,), (axis.outputs,))


def left_alone(axis: Axis, arithmetic: str) -> bool:
    if axis.inputs != axis.outputs:
        return False
    return arithmetic == "float32" or (axis.scale == 1 and axis.roi == (0, 1))


def check(axis: Axis, transformation: Any, arithmetic: Any, sizing: Any) -> None:
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
