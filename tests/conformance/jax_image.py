"""jax.image.resize and its transpose along one axis, read off by one-hot images and cotangents."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.rows import UP_TO_64, Section, Tally
from gradwire import ops
from support.oracles.dialect_oracles import (
    AxisCase,
    Matrix,
    axis_matrix,
    draw_sizes,
    elements_read,
    save_tables,
)

STORED = "jax_tables.npz"
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
_ATTRIBUTES: list[dict[str, Any]] = [{"method": "nearest"}] + [
    {"method": method, "antialias": antialias}
    for method in METHODS[1:]
    for antialias in (True, False)
]
_SIZES = ((1, 4), (4, 1), (3, 9), (10, 4), (5, 14), (29, 18), (20, 22))


def _resized(jax: Any, rows: Any, case: AxisCase) -> Any:
    return jax.image.resize(rows, (rows.shape[0], case.outputs), **case.attributes)


def _tables(jax: Any, few: Sequence[AxisCase], dtype: Any) -> list[tuple[Matrix, Matrix]]:
    """Return both tables of a few cases, of one program: compiling is what takes time."""

    def program(images: list[Any], cotangents: list[Any]) -> list[Any]:
        found: list[Any] = []
        for x, g, case in zip(images, cotangents, few, strict=True):
            source = jax.ShapeDtypeStruct((len(g), case.inputs), g.dtype)
            (transposed,) = jax.linear_transpose(partial(_resized, jax, case=case), source)(g)
            found.append((_resized(jax, x, case), transposed))
        return found

    images = [np.eye(case.inputs, dtype=dtype) for case in few]
    cotangents = [np.eye(case.outputs, dtype=dtype) for case in few]
    return [
        (np.asarray(y).T.astype(np.float64), np.asarray(g).astype(np.float64))
        for y, g in jax.jit(program)(images, cotangents)
    ]


def allowed(case: AxisCase, dtype: npt.DTypeLike = np.float32) -> float:
    """Return how far weights may be from JAX's.

    XLA contracts products and sums of coordinates, up to 150 here, which moves them by a unit of
    the last place; weights follow, and by as much again where they are divided by their sum.
    """
    if case.attributes["method"] == "nearest":
        return 0
    return 150 * 2.0**-23 if dtype == np.float32 else 2.0**-43


def table_here(case: AxisCase, dtype: npt.DTypeLike = np.float32) -> Matrix:
    operator = ops.JaxResize(**case.attributes)
    return axis_matrix(operator, case, rank=2, axis=1, dtype=dtype)


def _add_weights(tally: Tally, jax: Any, count: int, dtype: Any) -> None:
    """Compare tables and transposed tables, nine cases in a program."""
    generator, kinds = np.random.default_rng(9), len(_ATTRIBUTES)
    cases = [
        AxisCase(_ATTRIBUTES[i % kinds], *draw_sizes(generator, largest=150)) for i in range(count)
    ]
    for few in (cases[first : first + 9] for first in range(0, count, 9)):
        for case, theirs in zip(few, _tables(jax, few, dtype), strict=True):
            words = case.attributes["method"]
            if not case.attributes.get("antialias", True):
                words += ", no antialias"
            for name, table in zip(("jax_resize", "jax_resize_grad"), theirs, strict=True):
                key = ("jax: weights", name, words, dtype.__name__)
                tally.add(key, table_here(case, dtype), table, allowed=allowed(case, dtype))


def _compare(tally: Tally) -> None:
    jax: Any = importlib.import_module("jax")
    # XLA takes a tenth of a second for the program of each case.
    _add_weights(tally, jax, 54 if tally.brief else 1008, np.float32)
    lengths = range(1, 65)
    for inputs in (2, 4, 10, 20, 30, 34, 64) if tally.brief else lengths:

        def program(x: Any) -> list[Any]:
            return [jax.image.resize(x, (outputs,), "nearest") for outputs in lengths]

        read = jax.jit(program)(np.arange(inputs, dtype=np.float32))
        for outputs, theirs in zip(lengths, read, strict=True):
            case = AxisCase({"method": "nearest"}, inputs, outputs)
            key = ("jax: elements read", "jax_resize", f"nearest, {UP_TO_64}", "float32")
            ours = elements_read(ops.JaxResize(method="nearest"), case)
            tally.add(key, ours, np.asarray(theirs).astype(np.int64))
    with jax.enable_x64(True):  # noqa: FBT003 - as JAX takes it
        _add_weights(tally, jax, 18 if tally.brief else 180, np.float64)


SECTION = Section(
    "JAX",
    ("jax",),
    "dialects/jax.md",
    "Weights of `jax.image.resize` and of its transpose are read off one-hot tensors of up to 150"
    " elements. Those of `nearest` must be equal; XLA fuses the arithmetic of the others, which"
    " may differ by 150 * 2**-23, in float64 by 2**-43. What `nearest` reads must be equal at all"
    " pairs of lengths up to 64.",
    _compare,
)

if __name__ == "__main__":
    installed: Any = importlib.import_module("jax")
    every = [AxisCase(each, *sizes) for each in _ATTRIBUTES for sizes in _SIZES]
    stored = [(case, _tables(installed, [case], np.float32)[0][0]) for case in every]
    save_tables(STORED, {"jax": installed.__version__}, stored)
