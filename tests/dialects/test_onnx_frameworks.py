"""Random calls and several axes against ONNX's reference implementation and ONNX Runtime.

What a framework does otherwise than the specification is shown by conformance/deviations.toml.
"""

from __future__ import annotations

import numpy as np
import pytest

from conformance.onnx_resize import CASES, add_random, evaluated
from conformance.rows import Tally
from support.oracles.onnx_models import Attributes, installed, runtime


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    installed("onnx")
    installed("onnxruntime")


@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.heavy) for part in range(2, 10))]
)
def test_weights_are_those_of_onnx_runtime_and_of_the_reference(part: int) -> None:
    tally = Tally()
    for seed in range(part * CASES // 10, (part + 1) * CASES // 10):
        add_random(tally, seed)
    tally.check()
    by_the_reference = sum(row.cases for row in tally.rows() if row.operator == "onnx_resize")
    assert by_the_reference > CASES // 10 * 3 // 4


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
