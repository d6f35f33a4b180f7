"""jax.image.resize along one axis, read off by one-hot images and cotangents.

    PYTHONPATH=tests python -m support.oracles.live_jax

writes tests/data/jax_tables.npz with JAX 0.10.2 on a CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

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


def main() -> None:
    jax: Any = importlib.import_module("jax")
    stored = [AxisCase(each, *sizes) for each in ATTRIBUTES for sizes in SIZES]
    tables = [(case, forward_table(jax, case)) for case in stored]
    axis_tables.save(STORED, {"jax": jax.__version__}, tables)


if __name__ == "__main__":
    main()
