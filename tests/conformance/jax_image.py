"""jax.image.resize and its transpose."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables, live_jax
from support.oracles.axis_tables import AxisCase

# XLA contracts products and sums of coordinates, up to 150 here, which moves them by a unit of the
# last place; weights follow, and by as much again where they are divided by their sum.
ROUNDING = {np.float32: 150 * 2.0**-23, np.float64: 2.0**-43}
_NEAREST = ops.JaxResize(method="nearest")


def _words(case: AxisCase) -> str:
    method = case.attributes["method"]
    plain = method != "nearest" and not case.attributes["antialias"]
    return str(method) + ", no antialias" * plain


def add_weights(tally: Tally, jax: Any, cases: list[AxisCase], dtype: Any) -> None:
    """Compare tables and transposed tables, nine cases in a program."""
    for few in (cases[first : first + 9] for first in range(0, len(cases), 9)):
        for case, theirs in zip(few, live_jax.tables(jax, few, dtype), strict=True):
            operator = ops.JaxResize(**case.attributes)
            ours = axis_tables.axis_matrix(operator, case, rank=2, axis=1, dtype=dtype)
            allowed = 0 if case.attributes["method"] == "nearest" else ROUNDING[dtype]
            for name, table in zip(("jax_resize", "jax_resize_grad"), theirs, strict=True):
                key = ("jax: weights", name, _words(case), dtype.__name__)
                tally.add(key, ours, table, allowed=allowed)


def _nearest(tally: Tally, jax: Any) -> None:
    lengths = range(1, 65)
    for inputs in lengths:
        for outputs, read in zip(
            lengths, live_jax.nearest_reads(jax, inputs, lengths), strict=True
        ):
            case = AxisCase({"method": "nearest"}, inputs, outputs)
            key = ("jax: elements read", "jax_resize", f"nearest, {UP_TO_64}", "float32")
            tally.add(key, axis_tables.elements_read(_NEAREST, case), read)


def rows() -> list[Row]:
    """Compare with the installed JAX."""
    jax: Any = importlib.import_module("jax")
    tally = Tally()
    add_weights(tally, jax, live_jax.cases(1008), np.float32)
    _nearest(tally, jax)
    with jax.enable_x64(True):  # noqa: FBT003 - as JAX takes it
        add_weights(tally, jax, live_jax.cases(180), np.float64)
    return sorted(tally.rows(), key=lambda row: (row.peer, row.dtype, row.operator))


SECTION = Section(
    "JAX",
    ("jax",),
    "dialects/jax.md",
    "Weights of `jax.image.resize` and of its transpose are read off one-hot tensors of up to 150"
    " elements. Those of `nearest` must be equal; XLA fuses the arithmetic of the others, which"
    " may differ by 150 * 2**-23, in float64 by 2**-43. What `nearest` reads must be equal at all"
    " pairs of lengths up to 64.",
    rows,
)
