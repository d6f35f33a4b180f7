"""ONNX's node tests, stored and installed; random calls against its reference and runtime."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from conformance.onnx_resize import CASES, add_random, evaluated
from conformance.rows import Tally
from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.onnx_models import (
    Attributes,
    NodeCase,
    installed,
    node_cases,
    reference,
    runtime,
)

STORED = Path(__file__).parents[1] / "data" / "onnx_resize.npz"

# ONNX Runtime cuts the output's length before align_corners divides by it.
OTHER_IN_RUNTIME = {
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}


@cache
def stored_cases() -> list[tuple[NodeCase, Tensor, Tensor]]:
    """Read what make_onnx_vectors.py wrote: each case with a gradient of y and that of x."""
    with np.load(STORED) as stored:
        return [
            (
                NodeCase(
                    case["name"], case["attributes"], stored[f"x_{number}"], stored[f"y_{number}"]
                ),
                stored[f"output_gradient_{number}"].astype(np.float64),
                stored[f"input_gradient_{number}"],
            )
            for number, case in enumerate(json.loads(str(stored["about"]))["cases"])
        ]


def check_forward(case: NodeCase) -> None:
    """Compare shape and values; y is float32, and its cubic weights were computed in float32."""
    operator = ops.OnnxResize(**case.attributes)
    assert dialects.output_shape("onnx_resize", operator, case.x.shape) == case.y.shape
    result = evaluate(operator, case.x.astype(np.float64), case.y.shape)
    if case.attributes.get("mode") == "nearest":
        np.testing.assert_array_equal(result, case.y)
    np.testing.assert_allclose(result, case.y, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("number", range(39))
def test_published_outputs_are_reproduced(number: int) -> None:
    case, _, _ = stored_cases()[number]
    check_forward(case)


@pytest.mark.parametrize("number", range(39))
def test_gradients_are_the_transposed_reference(number: int) -> None:
    case, output_gradient, input_gradient = stored_cases()[number]
    result = evaluate(ops.OnnxResizeGrad(**case.attributes), output_gradient, case.x.shape)
    np.testing.assert_allclose(result, input_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("number", range(39))
def test_float32_reproduces_what_onnx_runtime_does(number: int) -> None:
    case, _, _ = stored_cases()[number]
    operator = ops.OnnxResize(**case.attributes, arithmetic="float32")
    result = evaluate(operator, case.x, case.y.shape)
    differs = not np.allclose(result, case.y, rtol=1e-3, atol=1e-5)
    assert differs == (case.name in OTHER_IN_RUNTIME)


def test_the_stored_cases_are_all_tested() -> None:
    assert len(stored_cases()) == 39


@pytest.mark.usefixtures("frameworks")
def test_the_published_cases_of_the_installed_onnx_are_reproduced() -> None:
    cases = node_cases()
    assert len(cases) >= 39
    for case in cases:
        check_forward(case)
        given = reference(case.attributes, case.x.astype(np.float64))
        ours = evaluate(ops.OnnxResize(**case.attributes), case.x.astype(np.float64), given.shape)
        np.testing.assert_allclose(ours, given, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("frameworks")
def test_float32_agrees_with_the_installed_runtime_on_the_published_cases() -> None:
    for case in node_cases():
        theirs = runtime(case.attributes, case.x)
        operator = ops.OnnxResize(**case.attributes, arithmetic="float32")
        # Two axes at once are summed in another order there.
        ours = evaluate(operator, case.x, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)


@pytest.fixture
def frameworks() -> None:
    installed("onnx")
    installed("onnxruntime")


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("part", range(10))
def test_weights_are_those_of_onnx_runtime_and_of_the_reference(part: int) -> None:
    tally = Tally()
    for seed in range(part * CASES // 10, (part + 1) * CASES // 10):
        add_random(tally, seed)
    tally.check()
    by_the_reference = sum(row.cases for row in tally.rows() if row.operator == "onnx_resize")
    assert by_the_reference > CASES // 10 * 3 // 4


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize(
    ("mode", "source", "scales"),
    [
        ("nearest", (7,), (1.7,)),
        ("nearest", (2, 3, 4, 5, 2), (1.5, 2, 0.5, 1.2, 3)),
        ("nearest", (8, 9), (1.05, 1.7)),
        ("linear", (5, 9), (2.3, 0.4)),
        ("linear", (5, 9), (1.05, 0.4)),
        ("linear", (4, 5, 6), (1.6, 0.5, 2.5)),
        ("linear", (1, 2, 4, 5, 6), (1, 1, 1.6, 0.5, 2.5)),
        ("linear", (1, 7, 6, 3), (1, 1.4, 0.6, 1)),
        ("cubic", (8, 9), (0.6, 1.7)),
        ("cubic", (8, 9), (1.05, 1.7)),
        ("cubic", (2, 3, 8, 9), (1, 1, 2.6, 0.7)),
    ],
)
def test_several_axes_agree_with_onnx_runtime(
    mode: str, source: tuple[int, ...], scales: tuple[float, ...]
) -> None:
    x = np.random.default_rng(3).standard_normal(source).astype(np.float32)
    for antialias in [False] if mode == "nearest" else [False, True]:
        attributes: Attributes = {"mode": mode, "scales": scales, "antialias": antialias}
        expected = runtime(attributes, x)
        result = evaluated(x, attributes, "float32")
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("scale", [0.3, 0.6, 0.75, 1.3, 2, 2.5])
def test_opset_10_rounds_up_where_an_axis_shrinks(scale: float) -> None:
    x = np.arange(1 * 1 * 11 * 11, dtype=np.float32).reshape(1, 1, 11, 11)
    expected = runtime({"mode": "nearest", "scales": [1, 1, scale, 2]}, x, opset=10)
    attributes: Attributes = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "simple",
        "scales": (1, 1, scale, 2),
    }
    np.testing.assert_array_equal(evaluated(x, attributes, "float32"), expected)
    np.testing.assert_array_equal(evaluated(x, attributes, "spec_float64"), expected)
