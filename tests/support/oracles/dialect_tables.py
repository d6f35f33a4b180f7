"""Every dialect's table, which every test of all dialects goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gradwire import ops
from gradwire.ops import onnx, openvino
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    DML_RULES,
    Matrix,
    Pair,
    Shape,
    Tensor,
    dml_operators,
    evaluate,
    lowered,
)
from support.oracles.oracles import covered


@dataclass(frozen=True, slots=True)
class Example:
    """One call of an operator, small enough for any way there is to call it.

    source    shape of what is sent
    result    shape of what comes back
    expected  result for an input of 1, 2, 3 ... in float32, where a reader can check it
    """

    operator: ops.Operator
    source: Shape
    result: Shape
    expected: object = None

    def given(self, dtype: np.dtype[np.generic] | type = np.float32) -> Tensor:
        """Return 1, 2, 3 ... in this shape."""
        return np.arange(1, 1 + np.prod(self.source)).reshape(self.source).astype(dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its gradient, and the two shapes they run between.

    nearest   whether every output reads one input with a weight of 1
    rounding  how far the weights of an output may be from a sum of 1; None where they need not be
    """

    pair: Pair
    source: Shape
    result: Shape
    nearest: bool
    rounding: float | None = 2.0**-25

    def forward(self, x: Tensor) -> Tensor:
        return evaluate(self.pair.forward, x, self.result)

    def gradient(self, g: Tensor) -> Tensor:
        return evaluate(self.pair.gradient, g, self.source)

    def bands(self, dtype: npt.DTypeLike) -> list[npt.NDArray[np.bool_]]:
        """Tell along each axis which inputs the band of each output covers, zeros and all."""
        return self._along_each_axis(covered, bool, dtype)

    def matrices(self, dtype: npt.DTypeLike = np.float64) -> list[Matrix]:
        return self._along_each_axis(lambda bands: bands.dense(), np.float64, dtype)

    def _along_each_axis(self, of: Any, kind: Any, dtype: npt.DTypeLike) -> list[Any]:
        found: list[Any] = [np.eye(size, dtype=kind) for size in self.source]
        for each in lowered(self.pair.forward, self.source, self.result, dtype).passes:
            found[each.axis] = of(each.map)
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """One dialect.

    page      its page in docs/
    examples  calls that go every way there is, at least one of each operator
    cases     what the laws of all gradients are tested on
    golden    messages of its own, as contract/test_descriptors.py has them
    """

    page: str
    examples: list[Example]
    cases: st.SearchStrategy[Case]
    golden: str = ""


TABLES: dict[str, Table] = {}


def shapes(rank: int) -> st.SearchStrategy[Shape]:
    """Short axes, fewer elements, up to 600, the more of them there are."""
    longest = max(2, int(600 ** (1 / rank)))
    return st.lists(st.integers(1, longest), min_size=rank, max_size=rank).map(tuple)


SCALES = st.floats(2**-6, 64, width=32) | st.floats(
    min_value=0, exclude_min=True, allow_infinity=False, width=32
)
OFFSETS = st.sampled_from([0.0, 0.5, -0.5, 1.0]) | st.floats(-9, 9, width=32)
ARRAYS = {"scales": SCALES, "input_pixel_offsets": OFFSETS, "output_pixel_offsets": OFFSETS}


@st.composite
def dml_cases(draw: st.DrawFn) -> Case:
    rank, rule = draw(st.integers(1, 8)), draw(st.sampled_from(sorted(DML_RULES)))
    arrays: dict[str, Any] = {
        name: draw(st.lists(values, min_size=rank, max_size=rank))
        for name, values in ARRAYS.items()
        if draw(st.booleans())
    }
    pair = draw(st.sampled_from(dml_operators(rule, **arrays)))
    return Case(pair, draw(shapes(rank)), draw(shapes(rank)), rule != "linear")


DML_NEAREST: Any = {"interpolation_mode": "nearest_neighbor"}
SWAPPED: Any = {"nearest_rounding": "half_up", "offset_convention": "swapped", "scales": (2, 1)}
SHIFTED = ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(0.25, 0.5))
FLOOR = ops.DmlResampleGrad1(rounding_direction="decreasing", **DML_NEAREST)
TABLES["dml"] = Table(
    page="docs/dialects/directml.md",
    cases=dml_cases(),
    examples=[
        Example(
            *(ops.DmlResampleGrad(**DML_NEAREST, **SWAPPED), (4, 3), (2, 3)),
            [[5, 7, 9], [17, 19, 21]],
        ),
        Example(FLOOR, (2, 3, 5), (2, 4, 3)),
        Example(SHIFTED, (7, 5), (4, 9)),
        Example(ops.DmlResample2(interpolation_mode="linear"), (6,), (11,)),
    ],
)


JAX_METHODS = ["nearest", "linear", "cubic", "lanczos3", "lanczos5"]


@st.composite
def jax_cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    source, result = draw(shapes(rank)), draw(shapes(rank))
    given: Any = {"method": draw(st.sampled_from(JAX_METHODS)), "antialias": draw(st.booleans())}
    pair = Pair(ops.JaxResize(shape=result, **given), ops.JaxResizeGrad(shape=result, **given))
    nearest = given["method"] == "nearest"
    return Case(pair, source, result, nearest, 0 if nearest else 2.0**-45)


TABLES["jax"] = Table(
    page="docs/dialects/jax.md",
    cases=jax_cases(),
    examples=[
        # Outputs 0 and 1 read element 0.
        Example(ops.JaxResizeGrad(method="nearest"), (2, 4), (2, 2), [[3, 7], [11, 15]]),
        Example(ops.JaxResizeGrad(method="linear", shape=(3, 2, 5)), (3, 2, 5), (3, 6, 2)),
        Example(ops.JaxResizeGrad(method="lanczos3", antialias=False), (2, 7), (2, 12)),
        Example(ops.JaxResizeGrad(method="cubic"), (1, 2, 3, 1), (1, 6, 2, 1)),
        # X reads at -1/4, 1/4, 3/4 and 5/4.
        Example(ops.JaxResize(method="linear", shape=(4,)), (2,), (4,), [1, 1.25, 1.75, 2]),
        Example(ops.JaxResize(method="lanczos5", shape=(5, 9)), (12, 4), (5, 9)),
    ],
    golden="""
JaxResize := method: METHOD_LANCZOS5 shape: [4, 300] antialias: false
= 08 05 | 12 03 04 ac 02 | 18 00
""",
)


@st.composite
def onednn_cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(3, 5))
    attributes: Any = {
        "mode": draw(st.sampled_from(["nearest", "linear"])),
        "coordinate_transformation_mode": draw(st.sampled_from(["half_pixel", "align_corners"])),
        "data_format": draw(st.sampled_from(["NCX", "NXC"])),
    }
    source, result = draw(shapes(rank)), draw(shapes(rank))
    channel = 1 if attributes["data_format"] == "NCX" else rank - 1
    spatial = [axis for axis in range(1, rank) if axis != channel]
    result = tuple(result[a] if a in spatial else source[a] for a in range(rank))
    sizes = tuple(result[axis] for axis in spatial)
    pair = Pair(ops.Interpolate(sizes=sizes, **attributes), ops.InterpolateBackward(**attributes))
    return Case(pair, source, result, attributes["mode"] == "nearest")


ONEDNN_CORNERS: Any = {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}
DOUBLED = ops.InterpolateBackward(mode="linear", scales=(2,), data_format="NCX")
CUBES = ops.InterpolateBackward(sizes_tensor=(3, 5, 2), **ONEDNN_CORNERS)
TRILINEAR = ops.Interpolate(mode="trilinear", sizes=(5, 2, 4))
TABLES["onednn"] = Table(
    page="docs/dialects/onednn.md",
    cases=onednn_cases(),
    examples=[
        Example(DOUBLED, (1, 1, 6), (1, 1, 3), [[[3.25, 7, 10.75]]]),
        Example(CUBES, (2, 3, 5, 2, 3), (2, 2, 4, 6, 3)),
        Example(TRILINEAR, (1, 2, 3, 4, 2), (1, 5, 2, 4, 2)),
    ],
)


Attributes = dict[str, Any]

ONNX_COORDINATES = get_args(onnx.CoordinateTransformationMode)
ONNX_ROI = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(-0.5, 1.5, width=32)


@st.composite
def onnx_attributes(draw: st.DrawFn, *, rank: int) -> Attributes:
    """Draw all but lengths: those that a mode reads."""
    drawn: Attributes = {
        "arithmetic": draw(st.sampled_from(get_args(onnx.Arithmetic))),
        "mode": draw(st.sampled_from(get_args(onnx.Mode))),
        "coordinate_transformation_mode": draw(st.sampled_from(ONNX_COORDINATES)),
    }
    arithmetic, mode, transformation = drawn.values()
    if mode == "nearest":
        drawn["nearest_mode"] = draw(st.sampled_from(get_args(onnx.NearestMode)))
    else:
        drawn["antialias"] = draw(st.booleans())
    if mode == "cubic":
        drawn["cubic_coeff_a"] = draw(st.sampled_from([-0.75, -0.5, -0.6]))
    if mode == "cubic" or arithmetic == "spec_float64" or drawn.get("antialias"):
        drawn["exclude_outside"] = draw(st.booleans())
    if draw(st.booleans()):
        order = draw(st.permutations(range(rank)))
        named = order[: draw(st.integers(1, rank))]
        drawn["axes"] = [axis - rank * draw(st.booleans()) for axis in named]
    if transformation == "tf_crop_and_resize":
        length = 2 * len(drawn.get("axes", range(rank)))
        drawn["roi"] = draw(st.lists(ONNX_ROI, min_size=length, max_size=length))
    return drawn


@st.composite
def onnx_cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    source = draw(shapes(rank))
    drawn = draw(onnx_attributes(rank=rank))
    axes: Sequence[int] = drawn.get("axes", range(rank))
    named = [source[axis] for axis in axes]
    if draw(st.booleans()):
        drawn["scales"] = [draw(st.floats(1.01 / size, 3)) for size in named]
    else:
        drawn["sizes"] = [draw(st.integers(1, max(source))) for _ in named]
        drawn["keep_aspect_ratio_policy"] = draw(st.sampled_from(["stretch", "not_smaller"]))
    pair = Pair(ops.OnnxResize(**drawn), ops.OnnxResizeGrad(**drawn))
    result = dialects.output_shape("onnx_resize", pair.forward, source)
    assert result is not None
    # Outputs may lie outside the input, and read nothing or elements that are left out.
    whole = "roi" not in drawn and not drawn.get("exclude_outside", False)
    rounding = 2.0**-18 if drawn["arithmetic"] == "float32" else 2.0**-45
    return Case(pair, source, result, drawn["mode"] == "nearest", rounding if whole else None)


CROP: Attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
STEEP: Attributes = {"mode": "cubic", "antialias": True, "cubic_coeff_a": -0.5}
ASYMMETRIC: Attributes = {"coordinate_transformation_mode": "asymmetric", "scales": (1, 0.6)}
SYMMETRIC: Attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "cubic"}
NOT_LARGER: Attributes = {"keep_aspect_ratio_policy": "not_larger", "axes": (2, 3)}
EXCLUDED: Attributes = {"exclude_outside": True, "axes": (-1, 0), "sizes": (3, 2)}
EXCLUDING = ops.OnnxResizeGrad(arithmetic="float32", **EXCLUDED, **STEEP)
CROPPED_GRAD = ops.OnnxResizeGrad(roi=(0.5, 1.5), axes=(1,), extrapolation_value=9, **CROP)
CROPPED = ops.OnnxResize(roi=(1, 0, 0, 2), sizes=(2, 3), extrapolation_value=-1.5, **CROP)
LARGE = ops.OnnxResize(sizes=(7, 8), **NOT_LARGER, **SYMMETRIC)
SIMPLE = ops.OnnxResize(nearest_mode="simple", **ASYMMETRIC)
TABLES["onnx"] = Table(
    page="docs/dialects/onnx.md",
    cases=onnx_cases(),
    examples=[
        Example(ops.OnnxResizeGrad(mode="linear", scales=(2,)), (6,), (3,), [3.25, 7, 10.75]),
        Example(EXCLUDING, (2, 3, 3), (5, 3, 8)),
        Example(CROPPED_GRAD, (2, 4), (2, 3)),
        Example(SIMPLE, (2, 4), (2, 2), [[1, 3], [5, 7]]),
        Example(CROPPED, (2, 2), (2, 3), [[3, 4, -1.5], [1, 2, -1.5]]),
        Example(LARGE, (1, 2, 4, 6), (1, 2, 5, 8)),
    ],
    # 0.5 in float32 is 3f000000, -0.0 is 80000000; -1 is ten bytes.
    golden="""
OnnxResize := mode: MODE_CUBIC cubic_coeff_a: 0 exclude_outside: true antialias: true axes: [2, -1]
  coordinate_transformation_mode: COORDINATE_TRANSFORMATION_MODE_TF_CROP_AND_RESIZE
  nearest_mode: NEAREST_MODE_SIMPLE scales: 0.5 sizes: 300 roi: [0, 0.5] extrapolation_value: -0.0
  keep_aspect_ratio_policy: KEEP_ASPECT_RATIO_POLICY_NOT_SMALLER arithmetic: ARITHMETIC_FLOAT32
= 08 03 | 10 07 | 18 05 | 25 00000000 | 28 01 | 30 01 | 3a 0b 02 ffffffffffffffffff01 | 40 03
| 4a 04 0000003f | 52 02 ac 02 | 5a 08 00000000 0000003f | 65 00000080 | 68 02
""",
)


OPENVINO_MODES = get_args(openvino.Mode)
TRANSFORMATIONS = get_args(openvino.CoordinateTransformationMode)
ROUNDINGS = get_args(openvino.NearestMode)


@st.composite
def openvino_cases(draw: st.DrawFn) -> Case:
    mode: Any = draw(st.sampled_from(OPENVINO_MODES))
    source, result = draw(shapes(3)), list(draw(shapes(3)))
    axes = [1, 2] if mode.endswith("pillow") else [0, 1, 2]
    attributes: dict[str, Any] = {
        "mode": mode,
        "axes": axes,
        "coordinate_transformation_mode": draw(st.sampled_from(TRANSFORMATIONS)),
        "nearest_mode": draw(st.sampled_from(ROUNDINGS)),
        "antialias": draw(st.booleans()),
        "cube_coeff": draw(st.sampled_from([-0.75, -0.5])),
    }
    pads = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    if draw(st.booleans()):
        attributes["pads_begin"] = pads
    begin = attributes.get("pads_begin", [0, 0, 0])
    for axis in set(range(3)) - set(axes):
        result[axis] = source[axis] + begin[axis]
    attributes["sizes"] = [result[axis] for axis in axes]
    pair = Pair(ops.OpenvinoInterpolate(**attributes), ops.OpenvinoInterpolateGrad(**attributes))
    # OpenVINO's own antialias leaves outputs without weights, and padding weighs in without a part.
    outside = mode == "linear" and (
        attributes["antialias"]
        or attributes["coordinate_transformation_mode"] not in TRANSFORMATIONS[:2]
    )
    nearest = mode == "nearest" and not any(begin)
    rounding = None if any(begin) or outside else 0 if nearest else 2.0**-20
    return Case(pair, source, (result[0], result[1], result[2]), nearest, rounding)


Openvino, OpenvinoGrad = ops.OpenvinoInterpolate, ops.OpenvinoInterpolateGrad
BY_SCALES: Any = {"shape_calculation_mode": "scales", "scales": (0.5, 1.5), "axes": (2, 1)}
PADS: Any = {"pads_begin": (0, 1), "pads_end": (1,)}
PADDED = OpenvinoGrad(mode="linear", antialias=True, **BY_SCALES, **PADS)
OPENVINO_CORNERS: Any = {"coordinate_transformation_mode": "align_corners", "cube_coeff": -0.5}
OPENVINO_SIMPLE = Openvino(mode="nearest", nearest_mode="simple", sizes=(4,), pads_begin=(1,))
PILLOW = Openvino(mode="bicubic_pillow", axes=(0, 1), sizes=(3, 7))
TWO_AXES = OpenvinoGrad(mode="linear_onnx", axes=(2, 3), sizes=(3, 5))
TABLES["openvino"] = Table(
    page="docs/dialects/openvino.md",
    cases=openvino_cases(),
    examples=[
        # Outputs 0 and 1 read element 0.
        Example(OpenvinoGrad(mode="nearest"), (4,), (2,), [3, 7]),
        Example(PADDED, (3, 7, 4), (2, 4, 8)),
        Example(OpenvinoGrad(mode="cubic", **OPENVINO_CORNERS), (2, 7), (2, 3)),
        Example(TWO_AXES, (1, 2, 3, 5), (1, 2, 6, 3)),
        Example(OPENVINO_SIMPLE, (3,), (4,), [0, 1, 2, 3]),
        Example(PILLOW, (8, 4), (3, 7)),
    ],
    # 1.5 in float32 is 3fc00000, -0.5 in float64 bfe0000000000000.
    golden="""
OpenvinoInterpolate := mode: MODE_BICUBIC_PILLOW sizes: 300 scales: 1.5 axes: 2
  shape_calculation_mode: SHAPE_CALCULATION_MODE_SCALES
  coordinate_transformation_mode: COORDINATE_TRANSFORMATION_MODE_ALIGN_CORNERS
  nearest_mode: NEAREST_MODE_SIMPLE antialias: true pads_begin: 1 pads_end: [0, 3] cube_coeff: -0.5
= 08 06 | 10 02 | 1a 02 ac 02 | 22 04 0000c03f | 2a 01 02 | 30 05 | 38 05 | 40 01
| 4a 01 01 | 52 02 00 03 | 59 000000000000e0bf
""",
)


# Four weights of bicubic are rounded, and so is the reciprocal of their sum.
TENSORFLOW_KINDS = {"bilinear": 2.0**-25, "nearest_neighbor": 0, "bicubic": 2.0**-21}
TENSORFLOW_FLAGS: list[dict[str, Any]] = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@st.composite
def tensorflow_cases(draw: st.DrawFn) -> Case:
    kind: Any = draw(st.sampled_from([*TENSORFLOW_KINDS]))
    source, size = draw(shapes(4)), draw(shapes(4))[1:3]
    given: Any = {"kind": kind, "size": size, **draw(st.sampled_from(TENSORFLOW_FLAGS))}
    pair = Pair(ops.TfResize(**given), ops.TfResizeGrad(**given))
    result = (source[0], *size, source[3])
    return Case(pair, source, result, kind == "nearest_neighbor", TENSORFLOW_KINDS[kind])


TENSORFLOW_CORNERS: Any = {"align_corners": True}
HALVES: Any = {"half_pixel_centers": True}
NEAREST_GRAD = ops.TfResizeGrad(kind="nearest_neighbor", **HALVES)
BICUBIC_GRAD = ops.TfResizeGrad(kind="bicubic", size=(6, 3), **TENSORFLOW_CORNERS)
TENSORFLOW_NEAREST = ops.TfResize(kind="nearest_neighbor", size=(1, 4), **TENSORFLOW_CORNERS)
BICUBIC = ops.TfResize(kind="bicubic", size=(4, 3), **HALVES)
TABLES["tensorflow"] = Table(
    page="docs/dialects/tensorflow.md",
    cases=tensorflow_cases(),
    examples=[
        # X reads at 0, 0.5, 1 and 1.5, the last one at the edge.
        Example(ops.TfResizeGrad(kind="bilinear"), (1, 1, 4, 1), (1, 1, 2, 1), [[[[2], [8]]]]),
        Example(NEAREST_GRAD, (2, 5, 3, 2), (2, 3, 7, 2)),
        Example(BICUBIC_GRAD, (1, 6, 3, 2), (1, 4, 5, 2)),
        # X reads at 0, 2/3, 4/3 and 2, rounded.
        Example(TENSORFLOW_NEAREST, (1, 1, 3, 1), (1, 1, 4, 1), [[[[1], [2], [2], [3]]]]),
        Example(BICUBIC, (1, 9, 8, 1), (1, 4, 3, 1)),
    ],
    golden="""
TfResize := kind: KIND_BICUBIC size: [4, 300] align_corners: true half_pixel_centers: true
= 08 03 | 12 03 04 ac 02 | 18 01 | 20 01
""",
)


TORCH_MODES = {
    3: ["nearest", "nearest-exact", "linear", "area"],
    4: ["nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos"],
    5: ["nearest", "nearest-exact", "trilinear", "area"],
}


@st.composite
def torch_cases(draw: st.DrawFn) -> Case:
    """Draw attributes and shapes that fit them; the gradient is the forward's adjoint."""
    rank = draw(st.integers(3, 5))
    mode = draw(st.sampled_from(TORCH_MODES[rank]))
    attributes: dict[str, Any] = {"mode": mode}
    if mode.endswith("linear") or mode == "bicubic":
        attributes["align_corners"] = draw(st.sampled_from([None, False, True]))
    if mode in {"bilinear", "bicubic", "lanczos"}:
        attributes["antialias"] = mode == "lanczos" or draw(st.booleans())
    source = draw(shapes(rank))
    spatial: Shape = draw(shapes(rank))[2:]
    if draw(st.booleans()):
        least = [1 / size for size in source[2:]]
        factors = [draw(st.floats(low, max(3.0, low))) for low in least]
        factors = [f if int(size * f) else 1.0 for f, size in zip(factors, source[2:], strict=True)]
        spatial = tuple(int(size * f) for f, size in zip(factors, source[2:], strict=True))
        attributes["scale_factor"] = factors
        attributes["recompute_scale_factor"] = draw(st.sampled_from([None, False, True]))
    else:
        attributes["size"] = spatial
    gradient = ops.TorchUpsampleBackward(**attributes, follow="forward_adjoint")
    pair = Pair(ops.TorchInterpolate(**attributes), gradient)
    nearest = mode.startswith("nearest")
    return Case(pair, source, (*source[:2], *spatial), nearest, 0 if nearest else 2.0**-45)


Torch, TorchGrad = ops.TorchInterpolate, ops.TorchUpsampleBackward
ADJOINT: Any = {"mode": "bicubic", "align_corners": True, "follow": "forward_adjoint"}
SMOOTH: Any = {"mode": "bilinear", "antialias": True, "align_corners": False}
EXACT: Any = {"mode": "nearest-exact", "scale_factor": 1.7, "recompute_scale_factor": True}
SCALED = TorchGrad(mode="trilinear", scale_factor=(1.5, 0.75, 1.3))
TABLES["torch"] = Table(
    page="docs/dialects/torch.md",
    cases=torch_cases(),
    examples=[
        Example(TorchGrad(scale_factor=2), (1, 1, 6), (1, 1, 3), [[[3, 7, 11]]]),
        Example(TorchGrad(size=(5, 3), **ADJOINT), (2, 1, 5, 3), (2, 1, 3, 7)),
        Example(SCALED, (1, 2, 6, 3, 5), (1, 2, 4, 4, 4)),
        Example(TorchGrad(**SMOOTH), (1, 1, 3, 4), (1, 1, 8, 5)),
        Example(Torch(mode="area", size=2), (1, 1, 5), (1, 1, 2), [[[2, 4]]]),
        Example(Torch(**EXACT), (1, 2, 4, 3), (1, 2, 6, 5)),
        Example(Torch(mode="lanczos", antialias=True, size=(4, 3)), (1, 1, 9, 8), (1, 1, 4, 3)),
    ],
    # 1.5 in float64 is 3ff8000000000000.
    golden="""
TorchInterpolate := size: [4, 300] scale_factor: 1.5 mode: MODE_LANCZOS align_corners: false
  recompute_scale_factor: true antialias: true follow: FOLLOW_FORWARD_ADJOINT
= 0a 03 04 ac 02 | 12 08 000000000000f83f | 18 08 | 20 00 | 28 01 | 30 01 | 38 02
""",
)

EXAMPLES: dict[str, Example] = {
    f"{name} {number} {example.operator!r}": example
    for name, table in TABLES.items()
    for number, example in enumerate(table.examples)
}
