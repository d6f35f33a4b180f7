"""Calls of several axes have the values of the installed frameworks."""

import os

import numpy as np
import pytest

from conformance import one_axis, onnx_resize
from gradwire import ops
from support.oracles.dialect_oracles import evaluate, normal


def installed(name):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip(name, reason=f"compares with {name} where it is installed")


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
def test_a_tensor_is_onnx_runtimes(mode, source, scales):
    installed("onnx")
    installed("onnxruntime")
    x = normal(*source)
    for antialias in [False] if mode == "nearest" else [False, True]:
        attributes = {"mode": mode, "scales": scales, "antialias": antialias}
        result = onnx_resize.evaluated(x, attributes, "float32")
        np.testing.assert_allclose(result, onnx_resize.runtime(attributes, x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [0.3, 0.6, 0.75, 1.3, 2, 2.5])
def test_opset_10_rounds_up_where_an_axis_shrinks(scale):
    onnx = installed("onnx")
    installed("onnxruntime")
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 10]>
        g (float[1, 1, 11, 11] x, float[4] scales) => (float[1, 1, H, W] y) {
            y = Resize<mode="nearest">(x, scales)
        }"""
    )
    x = np.arange(11.0 * 11, dtype=np.float32).reshape(1, 1, 11, 11)
    scales = np.array([1, 1, scale, 2], np.float32)
    (expected,) = onnx_resize.session(model).run(None, {"x": x, "scales": scales})
    rules = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "simple"}
    for arithmetic in ("spec_float64", "float32"):
        result = onnx_resize.evaluated(x, {**rules, "scales": (1, 1, scale, 2)}, arithmetic)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("method", one_axis.JAX_METHODS)
def test_a_gradient_is_jaxs(method):
    jax, cotangent = installed("jax"), normal(3, 9, 4)

    def resized(x):
        return jax.image.resize(x, (3, 9, 4), method)

    _, transpose = jax.vjp(resized, jax.numpy.zeros((3, 5, 13)))
    result = evaluate(ops.JaxResizeGrad(method=method), cotangent, (3, 5, 13))
    np.testing.assert_allclose(result, transpose(cotangent)[0], rtol=0, atol=2.0**-16)


@pytest.mark.parametrize("kind", one_axis.TF_OPS)
def test_a_gradient_of_height_and_width_is_tensorflows(kind):
    tf, grads, shape = installed("tensorflow"), normal(2, 7, 9, 3), (2, 4, 13, 3)
    source = {"original_image": np.zeros(shape, np.float32)}
    told = {"size": shape[1:3]} if kind == "nearest_neighbor" else source
    op = getattr(tf.raw_ops, f"{one_axis.TF_OPS[kind]}Grad")
    expected = op(grads=grads, **told, half_pixel_centers=True).numpy()
    result = evaluate(ops.TfResizeGrad(kind=kind, half_pixel_centers=True), grads, shape)
    np.testing.assert_allclose(result, expected, atol=2.0**-20)


@pytest.mark.parametrize("mode", one_axis.OPENVINO_MODES)
@pytest.mark.parametrize(
    "told", [{"sizes": (9, 4)}, {"shape_calculation_mode": "scales", "scales": (1.7, 0.4)}], ids=str
)
def test_an_image_is_that_of_openvinos_reference(mode, told):
    # One axis grows while the other shrinks, width comes before height where the reference can do
    # that, and other axes are padded where the mode allows.
    installed("openvino")
    axes = (3, 2) if mode in {"nearest", "linear", "cubic"} else (2, 3)
    pads = {} if mode == "linear_onnx" else {"pads_begin": (1, 0, 2), "pads_end": (0, 1, 0, 1)}
    operator = ops.OpenvinoInterpolate(mode=mode, axes=axes, antialias=True, **told, **pads)
    image = normal(2, 3, 8, 5)
    expected = one_axis.openvino_reference(operator, image)
    result = evaluate(operator, image, expected.shape)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2.0**-20)


@pytest.mark.parametrize("mode", ["bilinear_pillow", "bicubic_pillow"])
def test_descending_axes_of_pillow_are_openvinos_plugins(mode):
    installed("openvino")
    operator = ops.OpenvinoInterpolate(mode=mode, axes=(3, 2), sizes=(9, 4), cube_coeff=-0.5)
    image = normal(2, 3, 8, 5)
    expected = one_axis.openvino_plugin(operator, image)
    result = evaluate(operator, image, (2, 3, 4, 9))
    np.testing.assert_allclose(result, expected, rtol=0, atol=2.0**-18)
