"""Gradients that peers compute: bilinear x2, NCHW, float32."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

SMALL: Final = (1, 3, 64, 64)
LARGE: Final = (8, 64, 112, 112)


def gradient(shape: Shape) -> Array:
    """Return the same random gradient each time."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def result_shape(shape: Shape) -> Shape:
    """Return the shape of the result."""
    return (*shape[:-2], shape[-2] // 2, shape[-1] // 2)


def reference(gradient: Array) -> Array:
    """Return the result with dense matrices in float64: half-pixel coordinates, clamped edges."""
    rows, columns = (_matrix(size // 2) for size in gradient.shape[-2:])
    return np.asarray(rows.T @ gradient.astype(np.float64) @ columns)


def _matrix(inputs: int) -> Array:
    """Return the matrix of linear x2 upsampling along one axis."""
    dense = np.zeros((2 * inputs, inputs))
    for output in range(2 * inputs):
        place = max((output + 0.5) / 2 - 0.5, 0.0)
        first = int(place)
        dense[output, first] += 1 - (place - first)
        dense[output, min(first + 1, inputs - 1)] += place - first
    return dense
