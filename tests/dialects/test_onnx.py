"""ONNX's operators: rules, tables by the specification's formulas, and its node tests."""

import json
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformance.onnx_resize import NodeCase, evaluated
from gradwire import ops
from gradwire.ops import onnx
from gradwire_server import dialects
from gradwire_server.errors import RequestLimitError
from support.examples import examples
from support.oracles.dialect_oracles import DATA, OnnxAxis, axis_table, evaluate, lowered, onnx_axis

ARITHMETIC = pytest.mark.parametrize("arithmetic", ["spec_float64", "float32"])
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
NOT_LARGER = {"keep_aspect_ratio_policy": "not_larger"}
NOT_SMALLER = {"keep_aspect_ratio_policy": "not_smaller"}


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
def test_sizes_keep_the_aspect_ratio_and_scales_do_not(attributes, source, result):
    assert dialects.output_shape("onnx_resize", ops.OnnxResize(**attributes), source) == result


@ARITHMETIC
def test_a_roi_is_read_by_tf_crop_and_resize_alone_and_may_run_backward(arithmetic):
    given = {"mode": "linear", "sizes": (9,)}
    x = np.arange(5.0)
    ours = evaluated(x, {"roi": (0.5, 1), "extrapolation_value": 7, **given}, arithmetic)
    np.testing.assert_array_equal(ours, evaluated(x, given, arithmetic))
    # Without one it reads all.
    np.testing.assert_array_equal(evaluated(x, {**given, **CROP}, arithmetic), np.arange(9) / 2)
    for antialias in (False, True):
        given = {"mode": "linear", "roi": (1, 0), "sizes": (3,), "antialias": antialias, **CROP}
        first, middle, last = evaluated(x, given, arithmetic)
        np.testing.assert_allclose(middle, 2)
        assert first > middle > last


def test_elements_that_are_all_left_out_make_zero():
    given = {"nearest_mode": "ceil", "exclude_outside": True, "sizes": (8,)}
    forward = evaluated(np.arange(1.0, 5), {**given, "extrapolation_value": 7}, "spec_float64")
    np.testing.assert_array_equal(forward, [1, 2, 2, 3, 3, 4, 4, 0])


def test_float32_has_a_longest_axis_and_float64_has_none():
    source, result = (2**23 + 2,), (2,)
    spec = ops.OnnxResize(mode="linear", sizes=result)
    assert lowered(spec, source, result, np.float32).output_shape == result
    in_float32 = ops.OnnxResize(mode="linear", sizes=result, arithmetic="float32")
    with pytest.raises(RequestLimitError, match="max-float32-axis"):
        lowered(in_float32, source, result, np.float32)


def test_antialias_over_a_long_axis_takes_little_time_and_its_weights_sum_to_1():
    for mode in "linear", "cubic":
        operator = ops.OnnxResize(mode=mode, antialias=True, sizes=(1,))
        (only,) = lowered(operator, (10**6,), (1,), np.float64).passes
        assert only.map.nnz == 10**6
        np.testing.assert_allclose(only.map.weight.sum(), 1, rtol=1e-9)


MIDDLE_HALF = {**CROP, "sizes": (1, 5), "roi": (0, 0.25, 1, 0.75)}
NEARLY_HALF = {**CROP, "sizes": (1, 2), "roi": (0, 0, 1, np.nextafter(np.float32(0.75), 1))}
LINEAR = {"mode": "linear"}
SINGLE = {"coordinate_transformation_mode": "pytorch_half_pixel", "sizes": (1,), **LINEAR}
CORNERS = {"coordinate_transformation_mode": "align_corners", "scales": (1, 0.5), **LINEAR}
EXCLUDING = {"exclude_outside": True, "antialias": True}
STEEP = {"mode": "cubic", "cubic_coeff_a": -0.6}
ROW = np.arange(11.0)[np.newaxis]
STRIPES = np.array([[1e6], [0], [1e6]]).repeat(16, axis=1)
ROUNDED_UP = np.clip((np.arange(14) + 0.5) * 10 / 14 - 0.5, 0, 9)

# Attributes, input, results in float32 and by the specification, which frameworks depart from as
# conformance/deviations.toml shows. FLOAT32 follows ONNX Runtime, save in the last row.
DEVIATIONS = {
    "a whole coordinate": ({"sizes": (14,), **LINEAR}, np.arange(10.0), None, ROUNDED_UP),
    "one output": ({**EXCLUDING, **SINGLE}, [1.0, 2, 4], None, [(3 + 2 * 2 + 4) / 6]),
    "one output, a scale that float64 rounds": (SINGLE, np.arange(49.0), None, [0]),
    "cubic weights of float64": ({**STEEP, "sizes": (7,)}, np.ones(4), None, np.ones(7)),
    "a length rounded up": ({"scales": (1, 0.7)}, ROW[:, :10] * 0, [[0] * 7], [[0] * 6]),
    **{
        f"a roi, {mode}": ({"mode": mode, **MIDDLE_HALF}, ROW[:, :5], ROW[:, :5], [double])
        for mode, double in (
            ("nearest", [1, 1, 2, 2, 3]),
            ("linear", [1, 1.5, 2, 2.5, 3]),
            ("cubic", [1, 1.5, 2, 2.5, 3]),
        )
    },
    "a length that is cut": (CORNERS, ROW[:, :7], [[0, 3, 6]], [[0, 2.4, 4.8]]),
    "nearly half": (NEARLY_HALF, ROW, [[0, 7]], [[0, 8]]),
    "rows of scale 1": ({**STEEP, "scales": (1, 2)}, STRIPES[:, :8], STRIPES, STRIPES),
}


@pytest.mark.parametrize(
    ("attributes", "x", "single", "double"), DEVIATIONS.values(), ids=list(DEVIATIONS)
)
def test_results_where_frameworks_depart_from_the_specification(attributes, x, single, double):
    if single is not None:
        result = evaluated(np.asarray(x, np.float32), attributes, "float32")
        np.testing.assert_allclose(result, single, rtol=1e-6)
    result = evaluated(np.asarray(x, np.float64), attributes, "spec_float64")
    np.testing.assert_allclose(result, double, rtol=1e-14)


LENGTHS = st.integers(1, 40)
KINDS = {"spec_float64": np.float64, "float32": np.float32}
ROIS = st.tuples(*[st.sampled_from([0.0, 0.25, 0.75, 1.0]) | st.floats(-0.5, 1.5, width=32)] * 2)
EACH = pytest.mark.parametrize("transformation", get_args(onnx.CoordinateTransformationMode))


def check(axis, transformation, arithmetic, sizing):
    common = {"coordinate_transformation_mode": transformation, "arithmetic": arithmetic, **sizing}
    if transformation == "tf_crop_and_resize":
        common["roi"] = axis.roi
    left_alone = axis.inputs == axis.outputs and (
        arithmetic == "float32" or (axis.scale == 1 and axis.roi == (0, 1))
    )
    for extra in (
        *({"mode": "nearest", "nearest_mode": each} for each in get_args(onnx.NearestMode)),
        {"mode": "linear"},
        {"mode": "cubic", "cubic_coeff_a": -0.6},
        {"mode": "cubic", "exclude_outside": True},
    ):
        words = dict(extra)
        a = float(np.float32(words.pop("cubic_coeff_a", -0.75)))
        expected = onnx_axis(axis, transformation, words.pop("mode"), a=a, **words)
        if left_alone:
            expected = np.eye(axis.inputs)
        operator = ops.OnnxResize(**common, **dict(extra))
        ours = axis_table(operator, (axis.inputs,), (axis.outputs,))
        np.testing.assert_array_equal(ours, expected, err_msg=str(extra))


@EACH
@examples(25)
@given(inputs=LENGTHS, outputs=LENGTHS, roi=ROIS, factor=st.floats(0, 4))
@example(inputs=7, outputs=17, roi=(0, 1), factor=0.5)
@example(inputs=10, outputs=14, roi=(0, 1), factor=1)
@example(inputs=20, outputs=6, roi=(1, 0), factor=0)
@example(inputs=1, outputs=1, roi=(0.5, 0.5), factor=4)
@example(inputs=19, outputs=19, roi=(0, 1), factor=0.25)
@example(inputs=2, outputs=2, roi=(0, 1), factor=1.25)
def test_tables_by_size_and_by_scale_follow_the_formula(
    transformation, inputs, outputs, roi, factor
):
    if transformation != "tf_crop_and_resize":
        roi = (0, 1)
    given = float(np.float32(max(factor, 1.01 / inputs)))
    for arithmetic, kind in KINDS.items():
        scale = kind(outputs) / kind(inputs)
        # An axis that is given its size; by the specification that is its width.
        width = scale * kind(inputs) if kind is np.float32 else kind(outputs)
        axis = OnnxAxis(inputs, outputs, scale, width, roi)
        check(axis, transformation, arithmetic, {"sizes": (outputs,)})
        width = kind(given) * kind(inputs)
        axis = OnnxAxis(inputs, math.floor(width), kind(given), width, roi)
        check(axis, transformation, arithmetic, {"scales": (given,)})


@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@given(inputs=LENGTHS, outputs=LENGTHS)
@example(inputs=40, outputs=1)
@example(inputs=1, outputs=3)
def test_antialias_weighs_a_stretched_filter(mode, inputs, outputs, exclude_outside):
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
    for arithmetic, far in (("spec_float64", 1e-13), ("float32", 2e-5)):
        given = {"mode": mode, "sizes": (outputs,), "arithmetic": arithmetic}
        operator = ops.OnnxResize(antialias=True, exclude_outside=exclude_outside, **given)
        ours = axis_table(operator, (inputs,), (outputs,))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=far)


with np.load(DATA / "onnx_resize.npz") as stored:
    # Each node test with a gradient of y and that of x.
    NODES = [
        (
            NodeCase(each["name"], each["attributes"], stored[f"x_{i}"], stored[f"y_{i}"]),
            stored[f"output_gradient_{i}"].astype(np.float64),
            stored[f"input_gradient_{i}"],
        )
        for i, each in enumerate(json.loads(str(stored["about"]))["cases"])
    ]
# ONNX Runtime cuts the output's length before align_corners divides by it.
OTHER_IN_RUNTIME = {
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}


@pytest.mark.parametrize("number", range(39))
def test_published_outputs_and_gradients_of_the_reference_are_reproduced(number):
    case, output_gradient, input_gradient = NODES[number]
    # y is float32, and its cubic weights were computed in float32.
    result = evaluated(case.x.astype(np.float64), case.attributes, "spec_float64")
    if case.attributes.get("mode") == "nearest":
        np.testing.assert_array_equal(result, case.y)
    np.testing.assert_allclose(result, case.y, rtol=1e-6, atol=1e-5)
    operator = ops.OnnxResize(**case.attributes, arithmetic="float32")
    result = evaluate(operator, case.x, case.y.shape)
    differs = not np.allclose(result, case.y, rtol=1e-3, atol=1e-5)
    assert differs == (case.name in OTHER_IN_RUNTIME)
    result = evaluate(ops.OnnxResizeGrad(**case.attributes), output_gradient, case.x.shape)
    np.testing.assert_allclose(result, input_gradient, rtol=1e-12, atol=1e-12)


def test_the_stored_cases_are_all_tested():
    assert len(NODES) == 39
