"""The specification of all backends, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradwire_server.plans import BandedMap, Plan

Array = NDArray[Any]


def compute_dtype(storage: DTypeLike) -> np.dtype[Any]:
    """Return the type a storage type is computed in."""
    wide = np.dtype(storage) == np.dtype(np.float64)
    return np.dtype(np.float64 if wide else np.float32)


class NumpyCpu:
    """Applies plans with NumPy."""

    name = "numpy_cpu"

    def apply(self, plan: Plan, x: Array, result_dtype: DTypeLike) -> Array:
        """Return the plan's result for x."""
        y = x.astype(compute_dtype(x.dtype), copy=False)
        for one in plan.passes:
            shape = (*y.shape[: one.axis], one.map.outputs, *y.shape[one.axis + 1 :])
            z = np.empty(shape, y.dtype)
            self.accumulate(one.map, y, z, axis=one.axis, carried=0)
            y = z
        with np.errstate(over="ignore", invalid="ignore"):
            return y.astype(result_dtype, copy=False)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output to y."""
        weight = bands.weight.astype(x.dtype)
        x, y = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
        counts = bands.counts
        y[carried:][counts[carried:] == 0] = 0
        with np.errstate(all="ignore"):
            for tap in range(int(counts.max(initial=0))):
                rows = np.flatnonzero(counts > tap)
                w = weight[bands.offset[rows] + tap].reshape(-1, *[1] * (x.ndim - 1))
                product = w * x[bands.start[rows] + tap]
                first = (rows >= carried) if tap == 0 else np.zeros(len(rows), bool)
                y[rows[first]] = product[first]
                y[rows[~first]] = y[rows[~first]] + product[~first]
