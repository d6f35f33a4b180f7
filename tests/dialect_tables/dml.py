"""DirectML's operators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gradwire import ops
from support.oracles.dialect_oracles import DML_RULES, dml_operators
from support.oracles.dialect_table import Case, Example, Table, shapes

SCALES = st.floats(2**-6, 64, width=32) | st.floats(
    min_value=0, exclude_min=True, allow_infinity=False, width=32
)
OFFSETS = st.sampled_from([0.0, 0.5, -0.5, 1.0]) | st.floats(-9, 9, width=32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 8))
    rule = draw(st.sampled_from(sorted(DML_RULES)))
    arrays: dict[str, Any] = {}
    for name, values in (
        ("scales", SCALES),
        ("input_pixel_offsets", OFFSETS),
        ("output_pixel_offsets", OFFSETS),
    ):
        if draw(st.booleans()):
            arrays[name] = draw(st.lists(values, min_size=rank, max_size=rank))
    pair = draw(st.sampled_from(dml_operators(rule, **arrays)))
    return Case(pair, draw(shapes(rank)), draw(shapes(rank)), rule != "linear")


TABLE = Table(
    page="docs/dialects/directml.md",
    cases=cases(),
    examples=[
        Example(
            ops.DmlResampleGrad(
                interpolation_mode="nearest_neighbor",
                scales=(2, 1),
                nearest_rounding="half_up",
                offset_convention="swapped",
            ),
            (4, 3),
            (2, 3),
            [[5, 7, 9], [17, 19, 21]],
        ),
        Example(
            ops.DmlResampleGrad1(
                interpolation_mode="nearest_neighbor", rounding_direction="decreasing"
            ),
            (2, 3, 5),
            (2, 4, 3),
        ),
        Example(
            ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(0.25, 0.5)),
            (7, 5),
            (4, 9),
        ),
        Example(ops.DmlResample2(interpolation_mode="linear"), (6,), (11,)),
    ],
)
