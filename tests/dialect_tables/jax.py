"""JAX's operators."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gradwire import ops, v1
from support.oracles.dialect_oracles import Pair
from support.oracles.dialect_table import Case, Example, Table, shapes

METHODS = ["nearest", "linear", "cubic", "lanczos3", "lanczos5"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    method: Any = draw(st.sampled_from(METHODS))
    rank = draw(st.integers(1, 4))
    source, result = draw(shapes(rank)), draw(shapes(rank))
    antialias = draw(st.booleans())
    pair = Pair(
        ops.JaxResize(method=method, shape=result, antialias=antialias),
        ops.JaxResizeGrad(method=method, shape=result, antialias=antialias),
    )
    nearest = method == "nearest"
    return Case(pair, source, result, nearest, 0 if nearest else 2.0**-45)


TABLE = Table(
    page="docs/dialects/jax.md",
    cases=cases(),
    examples=[
        Example(
            ops.JaxResizeGrad(method="nearest"),
            (2, 4),
            (2, 2),
            # Outputs 0 and 1 read element 0.
            [[3, 7], [11, 15]],
        ),
        Example(ops.JaxResizeGrad(method="linear", shape=(3, 2, 5)), (3, 2, 5), (3, 6, 2)),
        Example(ops.JaxResizeGrad(method="lanczos3", antialias=False), (2, 7), (2, 12)),
        Example(ops.JaxResizeGrad(method="cubic"), (1, 2, 3, 1), (1, 6, 2, 1)),
        Example(
            ops.JaxResize(method="linear", shape=(4,)),
            (2,),
            (4,),
            # X reads at -1/4, 1/4, 3/4 and 5/4.
            [1, 1.25, 1.75, 2],
        ),
        Example(ops.JaxResize(method="lanczos5", shape=(5, 9)), (12, 4), (5, 9)),
    ],
    enums={
        "JaxResize.Method": ["UNSPECIFIED", "NEAREST", "LINEAR", "CUBIC", "LANCZOS3", "LANCZOS5"]
    },
    golden={
        "JaxResize": (
            v1.JaxResize(method=v1.JaxResize.METHOD_LANCZOS5, shape=(4, 300), antialias=False),
            "08 05 | 12 03 04 ac 02 | 18 00",
        ),
        "Operator jax_resize_grad": (v1.Operator(jax_resize_grad=v1.JaxResize()), "6a 00"),
        "Operator jax_resize": (v1.Operator(jax_resize=v1.JaxResize()), "72 00"),
    },
)
