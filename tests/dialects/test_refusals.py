"""Attributes and shapes that operators refuse: the field at fault and the reason."""

from functools import partial

import pytest

from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire_server import dialects
from gradwire_server.errors import InvalidFieldError
from support.oracles.dialect_oracles import DML_RULES, dml_operators, lowered

Backward = partial(ops.InterpolateBackward, mode="linear", data_format="NCX")
Interpolate = partial(ops.Interpolate, mode="linear", data_format="NCX")
Onnx, OnnxGrad = ops.OnnxResize, ops.OnnxResizeGrad
Torch, TorchGrad = ops.TorchInterpolate, ops.TorchUpsampleBackward
Openvino = partial(ops.OpenvinoInterpolate, mode="linear")
OpenvinoGrad = partial(ops.OpenvinoInterpolateGrad, mode="nearest")
Tf = partial(ops.TfResize, kind="bilinear")
TfGrad = partial(ops.TfResizeGrad, kind="bilinear")

DML_PAIRS = [pair for rule in DML_RULES for pair in dml_operators(rule)]
SWAPPED = {"offset_convention": "swapped", "input_pixel_offsets": (0.0, 0.0, 0.0)}

# Sizes and scales that disagree with src (1, 2, 4, 6) and dst (1, 2, 6, 9).
DISAGREEING = [
    ({"sizes": (6, 8)}, "sizes[1]", "is 8, but dst has 9"),
    ({"sizes_tensor": (5, 9)}, "sizes_tensor[0]", "is 5, but dst has 6"),
    ({"sizes": (6,)}, "sizes", "has 1 value"),
    ({"scales": (1.5,)}, "scales", "has 1 value"),
    (
        *({"scales": (1.5, 1.7)}, "scales[1]"),
        "is 1.7, which scales src's 6 elements to 10.2, but dst has 9; give 1.5",
    ),
    ({"scales": (1.25, 1.5)}, "scales[0]", "src's 4 elements to 5, but dst has 6"),
    ({"scales": (1.5, 3e38)}, "scales[1]", "src's 6 elements to inf"),
    ({"sizes": (6, 9), "scales": (1.5, 2.0)}, "scales[1]", "dst has 9"),
]
STILL = "this axis is not resampled"
NOT_LARGER = {"keep_aspect_ratio_policy": "not_larger"}
NOT_SMALLER = {"keep_aspect_ratio_policy": "not_smaller"}
ONNX_SCALED = OnnxGrad(scales=(0.6,), axes=(1,))
RANGE = "give sizes that result in 0.5 to 2**53"
BY_SCALES = {"shape_calculation_mode": "scales"}
RESIZED = "size resizes this axis from 4 to 9: give 9"
JAX_FORWARD = ops.JaxResize(method="linear", shape=(6, 9))
JAX_GRADIENT = ops.JaxResizeGrad(method="linear", shape=(6, 9))

# Operator, shapes of its input and its result, field at fault, words of the reason. Without a
# result the operator is asked for its shape. A field of an attribute stands without its path.
ROWS = [
    *(
        (operator, (4, 4), (2, 2), name, f"has {given} for 2 axes; give 2, or none")
        for name in ("scales", "input_pixel_offsets", "output_pixel_offsets")
        for given in ("1 value", "3 values")
        for pair in dml_operators("linear", **{name: (1.0,) * int(given[0])})
        for operator in pair
    ),
    *(
        (pair.gradient, (4, 4), (2, 2), "input_pixel_offsets", "has 3 values")
        for pair in dml_operators("linear", **SWAPPED)
    ),
    *((pair.gradient, (), (4,), "input.sizes", "has 0 axes") for pair in DML_PAIRS),
    *((pair.gradient, (4,), (1,) * 9, "output.sizes", "has 9 axes") for pair in DML_PAIRS),
    *((pair.gradient, (4, 4), (2, 0), "output.sizes[1]", "is 0") for pair in DML_PAIRS),
    *(
        row
        for given, field, words in DISAGREEING
        for row in (
            (Backward(**given), (1, 2, 6, 9), (1, 2, 4, 6), field, words),
            (Interpolate(**given), (1, 2, 4, 6), (1, 2, 6, 9), field, words),
        )
    ),
    (Interpolate(), (1, 1, 4), (1, 1, 8), "sizes", "give one of the three"),
    # A scale that makes no size.
    (Interpolate(scales=(0.05,)), (1, 1, 10), None, "scales[0]", "to 0.5; give a scale"),
    (Interpolate(scales=(3.4e38,)), (1, 1, 10), None, "scales[0]", "to inf; give a scale"),
    (Interpolate(scales=(2.0**40,)), (1, 1, 2**20), None, "scales[0]", "results in 1 to 2**53"),
    (Interpolate(sizes=(4, 5)), (1, 1, 2), None, "sizes", "has 2 values"),
    (Interpolate(sizes=(4,), scales=(3.0,)), (1, 1, 2), None, "scales[0]", "dst has 4"),
    (Interpolate(sizes_tensor=(4,), scales=(3.0,)), (1, 1, 2), None, "scales[0]", "dst has 4"),
    (Backward(), (2, 3, 8), (1, 3, 4), "input.sizes[0]", f"output.sizes[0] is 1, and {STILL}"),
    (Backward(), (2, 8), (2, 4), "input.sizes", "takes 3 to 5"),
    (Backward(), (2, 3, 0), (2, 3, 4), "input.sizes[2]", "is 0"),
    (Backward(data_format="NXC"), (1, 8, 3), (1, 4, 2), "input.sizes[2]", "not resampled"),
    (Onnx(), (1, 5), None, "sizes", "give one of the two"),
    (Onnx(sizes=(4,)), (1, 5), None, "sizes", "has 1 value for 2 axes"),
    (Onnx(scales=(2,), axes=(2,)), (1, 5), None, "axes[0]", "have -2 to 1"),
    (Onnx(scales=(2, 2), axes=(1, -1)), (1, 5), None, "axes[1]", "axis 1 again"),
    (Onnx(scales=(1, 0.1)), (1, 5), None, "scales[1]", "is 0.1, which scales 5 elements to 0.5"),
    (Onnx(sizes=(1, 1), **NOT_LARGER), (1, 5), None, "sizes[0]", f"to 0.2; {RANGE}"),
    (Onnx(sizes=(2**60, 5), **NOT_SMALLER), (1, 5), None, "sizes[0]", f"to 1.15292e+18; {RANGE}"),
    (OnnxGrad(sizes=(4,), axes=(0,), roi=(0, 0, 1, 1)), (4, 5), (3, 5), "roi", "has 4 values"),
    (ONNX_SCALED, (2, 4), (2, 5), "input.sizes[1]", "scales resizes this axis from 5 to 3: give 3"),
    (ONNX_SCALED, (3, 3), (2, 5), "input.sizes[0]", "not resampled: give 2"),
    (Torch(), (1, 1, 4), None, "size", "and so is scale_factor"),
    (TorchGrad(mode="bilinear", size=2), (1, 1, 2), (1, 1, 4), "mode", "of 4 axes"),
    (TorchGrad(size=(2, 2)), (1, 1, 2), (1, 1, 4), "size", "give 1, one for all, or none"),
    (TorchGrad(size=3), (1, 1, 2), (1, 1, 4), "input.sizes[2]", "from 4 to 3"),
    (TorchGrad(scale_factor=2), (1, 1, 9), (1, 1, 4), "input.sizes[2]", "scale_factor resizes"),
    (TorchGrad(scale_factor=0.2), (1, 1, 1), (1, 1, 4), "scale_factor[0]", "elements to 0.8"),
    (TorchGrad(), (1, 3, 4), (1, 2, 4), "input.sizes[1]", "not resampled"),
    (Openvino(), (2, 3), None, "sizes", "is empty"),
    (Openvino(sizes=(5,)), (2, 3), None, "sizes", "has 1 value for 2 axes"),
    (Openvino(sizes=(5,), axes=(2,)), (2, 3), None, "axes[0]", "is 2; a tensor of 2 axes"),
    (Openvino(sizes=(5, 5), axes=(1, 1)), (2, 3), None, "axes[1]", "different axes"),
    (Openvino(sizes=(5,), axes=(0,), pads_end=(0, 0, 1)), (2, 3), None, "pads_end", "has 3 values"),
    (Openvino(scales=(0.1, 1), **BY_SCALES), (2, 3), None, "scales[0]", "elements to 0.200002"),
    (OpenvinoGrad(mode="bilinear_pillow", axes=(0, 1, 2)), (4,) * 4, (2,) * 4, "axes", "two axes"),
    (OpenvinoGrad(mode="linear_onnx", axes=(1, 2, 3)), (4,) * 4, (2,) * 4, "axes", "takes 2, 3 of"),
    (Tf(), (2, 3, 4, 5), None, "size", "is empty"),
    (Tf(size=(6, 9)), (2, 3, 4, 5), (2, 6, 9, 4), "output.sizes[3]", "is 4"),
    (TfGrad(size=(6, 9)), (2, 6, 8, 5), (2, 3, 4, 5), "input.sizes[2]", RESIZED),
    (JAX_FORWARD, (2, 3, 4), None, "shape", "has 2 values for 3 axes; give 3, or the"),
    (JAX_FORWARD, (2, 3, 4), (6, 9, 4), "shape", "has 2 values for 3 axes; give 3, or none"),
    (JAX_GRADIENT, (6, 8), (2, 3), "input.sizes[1]", "shape resizes this axis from 3 to 9: give 9"),
]


def asked(operator, source, result):
    if result is None:
        dialects.output_shape(operator.name, operator, source)
    else:
        lowered(operator, source, result)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]!r} {row[1]} {row[2]}")
def test_what_does_not_fit_the_shapes_is_refused_by_field(row):
    operator, source, result, field, words = row
    with pytest.raises(InvalidFieldError) as refused:
        asked(operator, source, result)
    path = field if "." in field else f"operator.{operator.name}.{field}"
    assert refused.value.field == path
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)


OUTSIDE = {"sizes": (4,), "mode": "linear", "arithmetic": "float32", "exclude_outside": True}
CORNERS_OF_LANCZOS = {"mode": "lanczos", "antialias": True, "align_corners": True}

# Refused as a value, before any shape is known: attributes, field at fault, words of the reason.
VALUES = {
    ops.OnnxResize: [
        ({"scales": (2,), "sizes": (4,)}, "scales", "give one of the two"),
        ({"sizes": (4,), "antialias": True}, "antialias", "mode 'nearest' does not support it"),
        (OUTSIDE, "exclude_outside", "takes it with mode 'cubic'"),
    ],
    ops.OpenvinoInterpolateGrad: [
        ({"mode": "nearest", "scales": (2.0,)}, "scales", "is 'sizes': give sizes"),
        ({"mode": "nearest", **BY_SCALES}, "scales", "is empty"),
        ({"mode": "nearest", "sizes": (4,), "scales": (2,), **BY_SCALES}, "sizes", "give scales"),
    ],
    ops.TorchUpsampleBackward: [
        ({"size": 2, "scale_factor": 2}, "scale_factor", "size is (2,); give one of the two"),
        ({"size": 2, "recompute_scale_factor": True}, "recompute_scale_factor", "leave it out"),
        ({"align_corners": False}, "align_corners", "mode 'nearest' does not take it"),
        ({"mode": "area", "align_corners": True}, "align_corners", "leave it out"),
        ({"mode": "linear", "antialias": True}, "antialias", "bilinear, bicubic, lanczos do"),
        ({"mode": "lanczos"}, "antialias", "mode 'lanczos' needs True"),
        (CORNERS_OF_LANCZOS, "align_corners", "mode 'lanczos' does not take it"),
        ({"mode": "nearest_exact"}, "mode", "did you mean 'nearest-exact'?"),
    ],
}
VALUES[ops.OnnxResizeGrad] = VALUES[ops.OnnxResize]


@pytest.mark.parametrize(
    ("kind", "given", "field", "words"),
    [(kind, *row) for kind, rows in VALUES.items() for row in rows],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_value_is_refused_by_field(kind, given, field, words):
    with pytest.raises(InvalidRequestError) as refused:
        kind(**given)
    assert refused.value.field == f"operator.{kind.name}.{field}"
    assert words in refused.value.description
