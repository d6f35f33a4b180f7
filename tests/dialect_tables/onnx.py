"""ONNX's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from gradwire import ops, v1
from gradwire.ops import onnx
from gradwire_server import dialects
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Table, shapes

Attributes = dict[str, Any]

ROI = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(-0.5, 1.5, width=32)


@st.composite
def attributes(draw: st.DrawFn, *, rank: int) -> Attributes:
    """Draw all but lengths: those that a mode reads."""
    arithmetic = draw(st.sampled_from(get_args(onnx.Arithmetic)))
    mode = draw(st.sampled_from(get_args(onnx.Mode)))
    transformation = draw(st.sampled_from(get_args(onnx.CoordinateTransformationMode)))
    drawn: Attributes = {
        "arithmetic": arithmetic,
        "mode": mode,
        "coordinate_transformation_mode": transformation,
    }
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
        drawn["roi"] = draw(st.lists(ROI, min_size=length, max_size=length))
    return drawn


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    source = draw(shapes(rank))
    drawn = draw(attributes(rank=rank))
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
    in_float32 = drawn["arithmetic"] == "float32"
    rounding = (2.0**-18 if in_float32 else 2.0**-45) if whole else None
    return Case(pair, source, result, drawn["mode"] == "nearest", rounding)


TABLE = Table(
    page="docs/dialects/onnx.md",
    cases=cases(),
    examples=[
        Example(ops.OnnxResizeGrad(mode="linear", scales=(2,)), (6,), (3,), [3.25, 7, 10.75]),
        Example(
            ops.OnnxResizeGrad(
                mode="cubic",
                antialias=True,
                exclude_outside=True,
                cubic_coeff_a=-0.5,
                axes=(-1, 0),
                sizes=(3, 2),
                arithmetic="float32",
            ),
            (2, 3, 3),
            (5, 3, 8),
        ),
        Example(
            ops.OnnxResizeGrad(
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
                roi=(0.5, 1.5),
                axes=(1,),
                extrapolation_value=9,
            ),
            (2, 4),
            (2, 3),
        ),
        Example(
            ops.OnnxResize(
                coordinate_transformation_mode="asymmetric",
                nearest_mode="simple",
                scales=(1, 0.6),
            ),
            (2, 4),
            (2, 2),
            [[1, 3], [5, 7]],
        ),
        Example(
            ops.OnnxResize(
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
                roi=(1, 0, 0, 2),
                sizes=(2, 3),
                extrapolation_value=-1.5,
            ),
            (2, 2),
            (2, 3),
            [[3, 4, -1.5], [1, 2, -1.5]],
        ),
        Example(
            ops.OnnxResize(
                mode="cubic",
                coordinate_transformation_mode="half_pixel_symmetric",
                keep_aspect_ratio_policy="not_larger",
                axes=(2, 3),
                sizes=(7, 8),
            ),
            (1, 2, 4, 6),
            (1, 2, 5, 8),
        ),
    ],
    enums={
        "OnnxResize.Mode": ["UNSPECIFIED", "NEAREST", "LINEAR", "CUBIC"],
        "OnnxResize.CoordinateTransformationMode": [
            "UNSPECIFIED",
            "HALF_PIXEL",
            "HALF_PIXEL_SYMMETRIC",
            "PYTORCH_HALF_PIXEL",
            "ALIGN_CORNERS",
            "ASYMMETRIC",
            "TF_HALF_PIXEL_FOR_NN",
            "TF_CROP_AND_RESIZE",
        ],
        "OnnxResize.NearestMode": [
            "UNSPECIFIED",
            "ROUND_PREFER_FLOOR",
            "ROUND_PREFER_CEIL",
            "FLOOR",
            "CEIL",
            "SIMPLE",
        ],
        "OnnxResize.KeepAspectRatioPolicy": ["UNSPECIFIED", "STRETCH", "NOT_LARGER", "NOT_SMALLER"],
        "OnnxResize.Arithmetic": ["UNSPECIFIED", "SPEC_FLOAT64", "FLOAT32"],
    },
    golden={
        # 0.5 in float32 is 3f000000, -0.0 is 80000000; -1 is ten bytes.
        "OnnxResize": (
            v1.OnnxResize(
                mode=v1.OnnxResize.MODE_CUBIC,
                coordinate_transformation_mode=v1.OnnxResize.COORDINATE_TRANSFORMATION_MODE_TF_CROP_AND_RESIZE,
                nearest_mode=v1.OnnxResize.NEAREST_MODE_SIMPLE,
                cubic_coeff_a=0,
                exclude_outside=True,
                antialias=True,
                axes=(2, -1),
                keep_aspect_ratio_policy=v1.OnnxResize.KEEP_ASPECT_RATIO_POLICY_NOT_SMALLER,
                scales=(0.5,),
                sizes=(300,),
                roi=(0, 0.5),
                extrapolation_value=-0.0,
                arithmetic=v1.OnnxResize.ARITHMETIC_FLOAT32,
            ),
            (
                "08 03 | 10 07 | 18 05 | 25 00000000 | 28 01 | 30 01 | "
                "3a 0b 02 ffffffffffffffffff01 | 40 03 | 4a 04 0000003f | 52 02 ac 02 | "
                "5a 08 00000000 0000003f | 65 00000080 | 68 02"
            ),
        ),
        "Operator onnx_resize_grad": (v1.Operator(onnx_resize_grad=v1.OnnxResize()), "4a 00"),
        "Operator onnx_resize": (v1.Operator(onnx_resize=v1.OnnxResize()), "52 00"),
    },
)
