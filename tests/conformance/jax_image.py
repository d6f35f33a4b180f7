"""jax.image.resize and its transpose."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import axis_tables
import live_jax
from axis_tables import AxisCase
from conformance.rows import Row, Section, Tally
from dialect_oracles import Matrix
from gradwire import ops

# See tests/dialects/test_jax.py.
_ROUNDING = {np.float32: 150 * 2.0**-23, np.float64: 2.0**-43}


def _matrix(case: AxisCase, dtype: Any) -> Matrix:
    operator = ops.JaxResize(**case.attributes)
    return axis_tables.axis_matrix(operator, case, rank=2, axis=1, dtype=dtype)


def _add(tally: Tally, operator: str, case: AxisCase, table: Matrix, dtype: Any) -> None:
    method = case.attributes["method"]
    plain = method != "nearest" and not case.attributes["antialias"]
    key = ("jax: weights", operator, method + ", no antialias" * plain, dtype.__name__)
    allowed = 0 if method == "nearest" else _ROUNDING[dtype]
    tally.add(key, _matrix(case, dtype), table, allowed=allowed)


def rows() -> list[Row]:
    """Compare with the installed JAX."""
    jax: Any = importlib.import_module("jax")
    tally = Tally()
    for number, case in enumerate(live_jax.cases(90)):
        table = live_jax.forward_table(jax, case)
        _add(tally, "jax_resize", case, table, np.float32)
        if number < 27:
            table = live_jax.gradient_table(jax, case)
            _add(tally, "jax_resize_grad", case, table, np.float32)
    with jax.enable_x64(True):  # noqa: FBT003 - as JAX takes it
        for case in live_jax.cases(18):
            table = live_jax.forward_table(jax, case, np.float64)
            _add(tally, "jax_resize", case, table, np.float64)
    return sorted(tally.rows(), key=lambda row: (row.dtype, row.operator))


SECTION = Section(
    "JAX",
    {"jax": "jax"},
    "dialects/jax.md",
    "Weights of `jax.image.resize` and of its transpose are read off one-hot tensors of up to 150"
    " elements. Those of `nearest` must be equal; XLA fuses the arithmetic of the others, which"
    " may differ by 150 * 2**-23, in float64 by 2**-43.",
    rows,
)
