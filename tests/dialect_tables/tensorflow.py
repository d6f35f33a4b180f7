"""TensorFlow's operators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gradwire import ops, v1
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Table, shapes

FLAGS: list[dict[str, Any]] = [{}, {"align_corners": True}, {"half_pixel_centers": True}]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind: Any = draw(st.sampled_from(["bilinear", "nearest_neighbor", "bicubic"]))
    flags = draw(st.sampled_from(FLAGS))
    source = draw(shapes(4))
    size = draw(shapes(4))[1:3]
    pair = Pair(
        ops.TfResize(kind=kind, size=size, **flags), ops.TfResizeGrad(kind=kind, size=size, **flags)
    )
    nearest = kind == "nearest_neighbor"
    # Four weights are rounded, and so is the reciprocal of their sum.
    rounding = {"bilinear": 2.0**-25, "bicubic": 2.0**-21}.get(kind, 0)
    return Case(pair, source, (source[0], *size, source[3]), nearest, rounding)


TABLE = Table(
    page="docs/dialects/tensorflow.md",
    cases=cases(),
    examples=[
        Example(
            ops.TfResizeGrad(kind="bilinear"),
            (1, 1, 4, 1),
            (1, 1, 2, 1),
            # X reads at 0, 0.5, 1 and 1.5, the last one at the edge.
            [[[[2], [8]]]],
        ),
        Example(
            ops.TfResizeGrad(kind="nearest_neighbor", half_pixel_centers=True),
            (2, 5, 3, 2),
            (2, 3, 7, 2),
        ),
        Example(
            ops.TfResizeGrad(kind="bicubic", align_corners=True, size=(6, 3)),
            (1, 6, 3, 2),
            (1, 4, 5, 2),
        ),
        Example(
            ops.TfResize(kind="nearest_neighbor", align_corners=True, size=(1, 4)),
            (1, 1, 3, 1),
            (1, 1, 4, 1),
            # X reads at 0, 2/3, 4/3 and 2, rounded.
            [[[[1], [2], [2], [3]]]],
        ),
        Example(
            ops.TfResize(kind="bicubic", half_pixel_centers=True, size=(4, 3)),
            (1, 9, 8, 1),
            (1, 4, 3, 1),
        ),
    ],
    enums={"TfResize.Kind": ["UNSPECIFIED", "BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC"]},
    golden={
        "TfResize": (
            v1.TfResize(
                kind=v1.TfResize.KIND_BICUBIC,
                size=(4, 300),
                align_corners=True,
                half_pixel_centers=True,
            ),
            "08 03 | 12 03 04 ac 02 | 18 01 | 20 01",
        ),
        "Operator tf_resize_grad": (v1.Operator(tf_resize_grad=v1.TfResize()), "5a 00"),
        "Operator tf_resize": (v1.Operator(tf_resize=v1.TfResize()), "62 00"),
    },
)
