"""oneDNN's operators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gradwire import ops
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Table, shapes


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(3, 5))
    mode = draw(st.sampled_from(["nearest", "linear"]))
    attributes: Any = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(["half_pixel", "align_corners"])),
        "data_format": draw(st.sampled_from(["NCX", "NXC"])),
    }
    source, result = draw(shapes(rank)), draw(shapes(rank))
    channel = 1 if attributes["data_format"] == "NCX" else rank - 1
    spatial = [axis for axis in range(1, rank) if axis != channel]
    result = tuple(result[a] if a in spatial else source[a] for a in range(rank))
    sizes = tuple(result[axis] for axis in spatial)
    pair = Pair(ops.Interpolate(sizes=sizes, **attributes), ops.InterpolateBackward(**attributes))
    return Case(pair, source, result, mode == "nearest")


TABLE = Table(
    page="docs/dialects/onednn.md",
    cases=cases(),
    examples=[
        Example(
            ops.InterpolateBackward(mode="linear", scales=(2,), data_format="NCX"),
            (1, 1, 6),
            (1, 1, 3),
            [[[3.25, 7, 10.75]]],
        ),
        Example(
            ops.InterpolateBackward(
                mode="nearest",
                coordinate_transformation_mode="align_corners",
                sizes_tensor=(3, 5, 2),
            ),
            (2, 3, 5, 2, 3),
            (2, 2, 4, 6, 3),
        ),
        Example(
            ops.Interpolate(mode="trilinear", sizes=(5, 2, 4)), (1, 2, 3, 4, 2), (1, 5, 2, 4, 2)
        ),
    ],
)
