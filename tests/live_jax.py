"""jax.image.resize along one axis, read off by one-hot images and cotangents.

python tests/live_jax.py    writes tests/data/jax_tables.npz with JAX 0.10.2 on a CPU
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import axis_tables
from axis_tables import AxisCase
from dialect_oracles import Matrix

STORED = "jax_tables.npz"
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
ATTRIBUTES: list[dict[str, Any]] = [{"method": "nearest"}] + [
    {"method": method, "antialias": antialias}
    for method in METHODS[1:]
    for antialias in (True, False)
]
SIZES = ((1, 4), (4, 1), (3, 9), (10, 4), (5, 14), (29, 18), (20, 22))


def cases(count: int) -> list[AxisCase]:
    """Draw cases of every method, with and without antialias."""
    generator = np.random.default_rng(9)
    return [
        AxisCase(ATTRIBUTES[i % len(ATTRIBUTES)], *axis_tables.sizes(generator, largest=150))
        for i in range(count)
    ]


def forward_table(jax: Any, case: AxisCase, dtype: Any = np.float32) -> Matrix:
    """Return what jax.image.resize makes of one-hot images."""
    images = jax.numpy.eye(case.inputs, dtype=dtype)
    result = jax.image.resize(images, (case.inputs, case.outputs), **case.attributes)
    return np.asarray(result).T.astype(np.float64)


def gradient_table(jax: Any, case: AxisCase, dtype: Any = np.float32) -> Matrix:
    """Return what its transpose makes of one-hot cotangents."""
    shape = (case.outputs, case.outputs)
    zeros = jax.numpy.zeros((case.outputs, case.inputs), dtype)

    def resized(x: Any) -> Any:
        return jax.image.resize(x, shape, **case.attributes)

    _, transpose = jax.vjp(resized, zeros)
    (result,) = transpose(jax.numpy.eye(case.outputs, dtype=dtype))
    return np.asarray(result).astype(np.float64)


def main() -> None:
    """Store the forward's matrices."""
    jax: Any = importlib.import_module("jax")
    stored = [AxisCase(each, *sizes) for each in ATTRIBUTES for sizes in SIZES]
    tables = [(case, forward_table(jax, case)) for case in stored]
    axis_tables.save(STORED, {"jax": jax.__version__}, tables)


if __name__ == "__main__":
    main()
