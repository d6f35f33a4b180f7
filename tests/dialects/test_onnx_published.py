"""ONNX's own node tests of Resize: stored ones, and those of an installed onnx."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.onnx_models import NodeCase, installed, node_cases, reference, runtime

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


def test_the_published_cases_of_the_installed_onnx_are_reproduced() -> None:
    installed("onnx")
    cases = node_cases()
    assert len(cases) >= 39
    for case in cases:
        check_forward(case)
        given = reference(case.attributes, case.x.astype(np.float64))
        ours = evaluate(ops.OnnxResize(**case.attributes), case.x.astype(np.float64), given.shape)
        np.testing.assert_allclose(ours, given, rtol=1e-12, atol=1e-12)


def test_float32_agrees_with_the_installed_runtime_on_the_published_cases() -> None:
    installed("onnx")
    installed("onnxruntime")
    for case in node_cases():
        theirs = runtime(case.attributes, case.x)
        operator = ops.OnnxResize(**case.attributes, arithmetic="float32")
        # Two axes at once are summed in another order there.
        ours = evaluate(operator, case.x, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)
