"""jax.image.resize and its transpose along one axis, read off by one-hot images and cotangents."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.rows import UP_TO_64, Row, Section, Tally
from gradwire import ops
from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix

STORED = "jax_tables.npz"
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
ATTRIBUTES: list[dict[str, Any]] = [{"method": "nearest"}] + [
    {"method": method, "antialias": antialias}
    for method in METHODS[1:]
    for antialias in (True, False)
]
SIZES = ((1, 4), (4, 1), (3, 9), (10, 4), (5, 14), (29, 18), (20, 22))


def cases(count: int) -> list[AxisCase]:
    generator = np.random.default_rng(9)
    return [
        AxisCase(ATTRIBUTES[i % len(ATTRIBUTES)], *axis_tables.sizes(generator, largest=150))
        for i in range(count)
    ]


def forward_table(jax: Any, case: AxisCase, dtype: Any = np.float32) -> Matrix:
    result = _resized(jax, jax.numpy.eye(case.inputs, dtype=dtype), case)
    return np.asarray(result).T.astype(np.float64)


def gradient_table(jax: Any, case: AxisCase, dtype: Any = np.float32) -> Matrix:
    shape = (case.outputs, case.outputs)
    zeros = jax.numpy.zeros((case.outputs, case.inputs), dtype)

    def resized(x: Any) -> Any:
        return jax.image.resize(x, shape, **case.attributes)

    _, transpose = jax.vjp(resized, zeros)
    (result,) = transpose(jax.numpy.eye(case.outputs, dtype=dtype))
    return np.asarray(result).astype(np.float64)


def tables(
    jax: Any, few: Sequence[AxisCase], dtype: Any = np.float32
) -> list[tuple[Matrix, Matrix]]:
    """Return both tables of a few cases, of one program: compiling is what takes time."""

    def program(images: list[Any], cotangents: list[Any]) -> list[Any]:
        return [
            (_resized(jax, x, case), _transposed(jax, d, case))
            for x, d, case in zip(images, cotangents, few, strict=True)
        ]

    images = [np.eye(case.inputs, dtype=dtype) for case in few]
    cotangents = [np.eye(case.outputs, dtype=dtype) for case in few]
    found = jax.jit(program)(images, cotangents)
    return [
        (np.asarray(y).T.astype(np.float64), np.asarray(g).astype(np.float64)) for y, g in found
    ]


def nearest_reads(jax: Any, inputs: int, lengths: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Return what `nearest` reads for each length of the output, off an image of indices."""

    def program(x: Any) -> list[Any]:
        return [jax.image.resize(x, (outputs,), "nearest") for outputs in lengths]

    image = np.arange(inputs, dtype=np.float32)
    return [np.asarray(y).astype(np.int64) for y in jax.jit(program)(image)]


def _resized(jax: Any, rows: Any, case: AxisCase) -> Any:
    return jax.image.resize(rows, (rows.shape[0], case.outputs), **case.attributes)


def _transposed(jax: Any, cotangents: Any, case: AxisCase) -> Any:
    source = jax.ShapeDtypeStruct((len(cotangents), case.inputs), cotangents.dtype)
    (result,) = jax.linear_transpose(partial(_resized, jax, case=case), source)(cotangents)
    return result


# XLA contracts products and sums of coordinates, up to 150 here, which moves them by a unit of the
# last place; weights follow, and by as much again where they are divided by their sum.
ROUNDING = {np.float32: 150 * 2.0**-23, np.float64: 2.0**-43}
_NEAREST = ops.JaxResize(method="nearest")


def _words(case: AxisCase) -> str:
    method = case.attributes["method"]
    plain = method != "nearest" and not case.attributes["antialias"]
    return str(method) + ", no antialias" * plain


def table_here(case: AxisCase, dtype: npt.DTypeLike = np.float32) -> Matrix:
    operator = ops.JaxResize(**case.attributes)
    return axis_tables.axis_matrix(operator, case, rank=2, axis=1, dtype=dtype)


def add_weights(tally: Tally, jax: Any, cases: list[AxisCase], dtype: Any) -> None:
    """Compare tables and transposed tables, nine cases in a program."""
    for few in (cases[first : first + 9] for first in range(0, len(cases), 9)):
        for case, theirs in zip(few, tables(jax, few, dtype), strict=True):
            ours = table_here(case, dtype)
            allowed = 0 if case.attributes["method"] == "nearest" else ROUNDING[dtype]
            for name, table in zip(("jax_resize", "jax_resize_grad"), theirs, strict=True):
                key = ("jax: weights", name, _words(case), dtype.__name__)
                tally.add(key, ours, table, allowed=allowed)


def _nearest(tally: Tally, jax: Any) -> None:
    lengths = range(1, 65)
    for inputs in lengths:
        for outputs, read in zip(lengths, nearest_reads(jax, inputs, lengths), strict=True):
            case = AxisCase({"method": "nearest"}, inputs, outputs)
            key = ("jax: elements read", "jax_resize", f"nearest, {UP_TO_64}", "float32")
            tally.add(key, axis_tables.elements_read(_NEAREST, case), read)


def rows() -> list[Row]:
    """Compare with the installed JAX."""
    jax: Any = importlib.import_module("jax")
    tally = Tally()
    add_weights(tally, jax, cases(1008), np.float32)
    _nearest(tally, jax)
    with jax.enable_x64(True):  # noqa: FBT003 - as JAX takes it
        add_weights(tally, jax, cases(180), np.float64)
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


def main() -> None:
    jax: Any = importlib.import_module("jax")
    stored = [AxisCase(each, *sizes) for each in ATTRIBUTES for sizes in SIZES]
    tables = [(case, forward_table(jax, case)) for case in stored]
    axis_tables.save(STORED, {"jax": jax.__version__}, tables)


if __name__ == "__main__":
    main()
