"""Random calls against ONNX's reference implementation and ONNX Runtime, and where those differ.

What a framework does otherwise than the specification is a test here: it runs the framework, and
fails where a newer release does it no more.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.onnx_models import (
    Attributes,
    exact_coordinate,
    impulses,
    installed,
    model,
    random_call,
    reference,
    runtime,
)

CASES = 1500
NEAR = Fraction(1, 10**9)


@pytest.fixture
def onnx() -> None:
    installed("onnx")


@pytest.fixture
def onnxruntime() -> None:
    installed("onnx")
    installed("onnxruntime")


def ours(x: Tensor, attributes: Attributes, *, arithmetic: str) -> Tensor:
    """Evaluate Resize here."""
    given: Attributes = {**attributes, "arithmetic": arithmetic}
    operator = ops.OnnxResize(**given)
    shape = dialects.output_shape("onnx_resize", operator, x.shape)
    assert shape is not None
    return evaluate(operator, x, shape)


def spec(x: Tensor, **attributes: object) -> Tensor:
    return ours(x, attributes, arithmetic="spec_float64")


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("part", range(10))
def test_weights_have_the_bits_of_onnx_runtime(part: int) -> None:
    for seed in range(part * CASES // 10, (part + 1) * CASES // 10):
        length, attributes = random_call(seed)
        # Rows, whose scale is 1, get cubic weights of nearly zero there. They do not show in the
        # middle one of three, nor in a single one where the others are left out.
        rows = 1 if attributes.get("exclude_outside") else 3
        x = impulses(length, np.float32, rows=rows)
        result = ours(x, attributes, arithmetic="float32")[:, :, rows // 2]
        expected = runtime(attributes, x)[:, :, rows // 2]
        np.testing.assert_array_equal(result, expected, err_msg=f"seed {seed}")


@pytest.mark.usefixtures("onnx")
@pytest.mark.parametrize("part", range(10))
def test_weights_are_those_of_the_reference_save_near_whole_and_half_coordinates(part: int) -> None:
    compared = 0
    for seed in range(part * CASES // 10, (part + 1) * CASES // 10):
        length, attributes = random_call(seed)
        if attributes["coordinate_transformation_mode"] == "tf_half_pixel_for_nn":
            continue  # not of the opsets the reference has
        x = impulses(length, np.float64)
        result, expected = spec(x, **attributes), reference(attributes, x)
        assert result.shape == expected.shape
        difference = np.abs(result - expected).max(axis=(0, 1, 2))
        for index in np.flatnonzero(difference > 1e-11):
            twice = 2 * exact_coordinate(attributes, length, result.shape[3], int(index))
            single = attributes["coordinate_transformation_mode"] == "pytorch_half_pixel"
            explained = abs(twice - round(twice)) < NEAR
            assert explained or (single and result.shape[3] == 1), f"seed {seed}, output {index}"
        compared += 1
    assert compared > CASES // 10 * 3 // 4


@pytest.mark.usefixtures("onnxruntime")
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
        result = ours(x, attributes, arithmetic="float32")
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("scale", [0.3, 0.6, 0.75, 1.3, 2, 2.5])
def test_opset_10_rounds_up_where_an_axis_shrinks(scale: float) -> None:
    x = np.arange(1 * 1 * 11 * 11, dtype=np.float32).reshape(1, 1, 11, 11)
    expected = runtime({"mode": "nearest", "scales": [1, 1, scale, 2]}, x, opset=10)
    attributes: Attributes = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "simple",
        "scales": (1, 1, scale, 2),
    }
    np.testing.assert_array_equal(ours(x, attributes, arithmetic="float32"), expected)
    np.testing.assert_array_equal(ours(x, attributes, arithmetic="spec_float64"), expected)


@pytest.mark.usefixtures("onnx")
def test_the_reference_takes_a_wrong_tap_beside_a_whole_coordinate() -> None:
    # x is 7.000000000000001 in float64: the window begins at floor(x + 1) - 1, the weights at x.
    attributes: Attributes = {"mode": "linear", "sizes": [10, 1, 3, 14]}
    x = impulses(10, np.float64)
    assert reference(attributes, x)[:, 0, 1, 10].argmax() == 6
    assert spec(x, **attributes)[:, 0, 1, 10].argmax() == 7


@pytest.mark.usefixtures("onnx")
def test_the_reference_reads_beside_the_axis_for_one_output_of_pytorch_half_pixel() -> None:
    attributes: Attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "pytorch_half_pixel",
        "exclude_outside": True,
        "antialias": True,
        "sizes": [1],
    }
    # x = -0.5, of whose window a part lies outside; it is 0 by the specification.
    x = np.array([1.0, 2, 4])
    np.testing.assert_allclose(reference(attributes, x), [5 / 3])
    np.testing.assert_allclose(spec(x, **attributes), [(3 + 2 * 2 + 4) / 6])


@pytest.mark.usefixtures("onnx")
def test_the_reference_takes_one_output_for_several_where_the_scale_rounds() -> None:
    # 49 * (1 / 49) is less than 1 in float64, so that the reference reads the middle.
    attributes: Attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "pytorch_half_pixel",
        "sizes": [1],
    }
    x = np.arange(49.0)
    np.testing.assert_allclose(reference(attributes, x), [24])
    np.testing.assert_allclose(spec(x, **attributes), [0])


@pytest.mark.usefixtures("onnx")
def test_the_reference_evaluator_computes_cubic_weights_in_float32() -> None:
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    x = np.array([0.0, 0, 1, 0])
    attributes: Attributes = {"mode": "cubic", "cubic_coeff_a": -0.6, "sizes": [7]}
    (evaluated,) = evaluator(model(attributes, x)).run(None, {"x": x})
    wide = {**attributes, "cubic_coeff_a": float(np.float32(-0.6))}
    np.testing.assert_allclose(spec(x, **wide), reference(wide, x), rtol=0, atol=1e-15)
    error = np.abs(evaluated - spec(x, **wide)).max()
    assert 1e-8 < error < 1e-5


@pytest.mark.usefixtures("onnxruntime")
def test_onnx_runtime_rounds_a_length_before_it_cuts_it() -> None:
    # 10 * float32(0.7) is 6.99999988, which float32 rounds to 7.
    attributes: Attributes = {"scales": (1, 0.7)}
    x = np.zeros((1, 10), np.float32)
    assert runtime(attributes, x).shape == (1, 7)
    assert ours(x, attributes, arithmetic="float32").shape == (1, 7)
    assert reference({"scales": (1, np.float32(0.7))}, x).shape == (1, 6)
    assert spec(x, **attributes).shape == (1, 6)


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_onnx_runtime_ignores_the_roi_where_the_shape_stays(mode: str) -> None:
    x = np.arange(5, dtype=np.float32)[np.newaxis]
    attributes: Attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "roi": (0, 0.25, 1, 0.75),
        "sizes": (1, 5),
    }
    np.testing.assert_array_equal(runtime(attributes, x), x)
    np.testing.assert_array_equal(ours(x, attributes, arithmetic="float32"), x)
    expected = [1, 1, 2, 2, 3] if mode == "nearest" else [1, 1.5, 2, 2.5, 3]
    np.testing.assert_allclose(spec(x, **attributes), np.array([expected], np.float64))


@pytest.mark.usefixtures("onnxruntime")
def test_onnx_runtime_cuts_the_length_before_align_corners() -> None:
    x = np.arange(7, dtype=np.float32)[np.newaxis]
    attributes: Attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "align_corners",
        "scales": (1, 0.5),
    }
    np.testing.assert_allclose(runtime(attributes, x), [[0, 3, 6]])
    np.testing.assert_allclose(ours(x, attributes, arithmetic="float32"), [[0, 3, 6]])
    np.testing.assert_allclose(spec(x, **attributes), [[0, 2.4, 4.8]])


@pytest.mark.usefixtures("onnxruntime")
def test_onnx_runtime_rounds_nearly_half_as_half() -> None:
    x = np.arange(11, dtype=np.float32)[np.newaxis]
    attributes: Attributes = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "roi": (0, 0, 1, float(np.nextafter(np.float32(0.75), np.float32(1)))),
        "sizes": (1, 2),
    }
    np.testing.assert_array_equal(runtime(attributes, x), [[0, 7]])
    np.testing.assert_array_equal(ours(x, attributes, arithmetic="float32"), [[0, 7]])
    np.testing.assert_array_equal(spec(x, **attributes), [[0, 8]])


@pytest.mark.usefixtures("onnxruntime")
def test_onnx_runtime_weighs_rows_that_stay_by_cubic_weights_of_nearly_zero() -> None:
    x = np.ones((1, 8), np.float32)
    attributes: Attributes = {"mode": "cubic", "cubic_coeff_a": -0.6, "scales": (1, 2)}
    rows = runtime(attributes, x)
    assert 0 < np.abs(rows - ours(x, attributes, arithmetic="float32")).max() < 1e-6
