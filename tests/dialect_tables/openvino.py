"""OpenVINO's operators."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from gradwire import ops, v1
from gradwire.ops import openvino
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Table, shapes

MODES = get_args(openvino.Mode)
TRANSFORMATIONS = get_args(openvino.CoordinateTransformationMode)
ROUNDINGS = get_args(openvino.NearestMode)

# OpenVINO's own antialias leaves outputs without weights, and padding weighs in without a part.
AXES = {"bilinear_pillow": [1, 2], "bicubic_pillow": [1, 2]}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    mode: Any = draw(st.sampled_from(MODES))
    source, result = draw(shapes(3)), list(draw(shapes(3)))
    axes = AXES.get(mode) or [0, 1, 2]
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
    plain = not any(begin)
    outside = mode == "linear" and (
        attributes["antialias"]
        or attributes["coordinate_transformation_mode"] not in TRANSFORMATIONS[:2]
    )
    whole = plain and not outside
    nearest = mode == "nearest" and plain
    rounding = (0 if nearest else 2.0**-20) if whole else None
    return Case(pair, source, (result[0], result[1], result[2]), nearest, rounding)


TABLE = Table(
    page="docs/dialects/openvino.md",
    cases=cases(),
    examples=[
        Example(
            ops.OpenvinoInterpolateGrad(mode="nearest"),
            (4,),
            (2,),
            # Outputs 0 and 1 read element 0.
            [3, 7],
        ),
        Example(
            ops.OpenvinoInterpolateGrad(
                mode="linear",
                shape_calculation_mode="scales",
                scales=(0.5, 1.5),
                axes=(2, 1),
                antialias=True,
                pads_begin=(0, 1),
                pads_end=(1,),
            ),
            (3, 7, 4),
            (2, 4, 8),
        ),
        Example(
            ops.OpenvinoInterpolateGrad(
                mode="cubic", coordinate_transformation_mode="align_corners", cube_coeff=-0.5
            ),
            (2, 7),
            (2, 3),
        ),
        Example(
            ops.OpenvinoInterpolateGrad(mode="linear_onnx", axes=(2, 3), sizes=(3, 5)),
            (1, 2, 3, 5),
            (1, 2, 6, 3),
        ),
        Example(
            ops.OpenvinoInterpolate(
                mode="nearest", nearest_mode="simple", sizes=(4,), pads_begin=(1,)
            ),
            (3,),
            (4,),
            [0, 1, 2, 3],
        ),
        Example(
            ops.OpenvinoInterpolate(mode="bicubic_pillow", axes=(0, 1), sizes=(3, 7)),
            (8, 4),
            (3, 7),
        ),
    ],
    enums={
        "OpenvinoInterpolate.Mode": ["UNSPECIFIED", *(mode.upper() for mode in MODES)],
        "OpenvinoInterpolate.ShapeCalculationMode": ["UNSPECIFIED", "SIZES", "SCALES"],
        "OpenvinoInterpolate.CoordinateTransformationMode": [
            "UNSPECIFIED",
            *(mode.upper() for mode in TRANSFORMATIONS),
        ],
        "OpenvinoInterpolate.NearestMode": [
            "UNSPECIFIED",
            *(mode.upper() for mode in ROUNDINGS),
        ],
    },
    golden={
        # 1.5 in float32 is 3fc00000, -0.5 in float64 bfe0000000000000.
        "OpenvinoInterpolate": (
            v1.OpenvinoInterpolate(
                mode=v1.OpenvinoInterpolate.MODE_BICUBIC_PILLOW,
                shape_calculation_mode=v1.OpenvinoInterpolate.SHAPE_CALCULATION_MODE_SCALES,
                sizes=(300,),
                scales=(1.5,),
                axes=(2,),
                coordinate_transformation_mode=v1.OpenvinoInterpolate.COORDINATE_TRANSFORMATION_MODE_ALIGN_CORNERS,
                nearest_mode=v1.OpenvinoInterpolate.NEAREST_MODE_SIMPLE,
                antialias=True,
                pads_begin=(1,),
                pads_end=(0, 3),
                cube_coeff=-0.5,
            ),
            (
                "08 06 | 10 02 | 1a 02 ac 02 | 22 04 0000c03f | 2a 01 02 | 30 05 | 38 05 | 40 01 | "
                "4a 01 01 | 52 02 00 03 | 59 000000000000e0bf"
            ),
        ),
        "Operator openvino_interpolate_grad": (
            v1.Operator(openvino_interpolate_grad=v1.OpenvinoInterpolate()),
            "82 01 00",
        ),
        "Operator openvino_interpolate": (
            v1.Operator(openvino_interpolate=v1.OpenvinoInterpolate()),
            "8a 01 00",
        ),
    },
)
