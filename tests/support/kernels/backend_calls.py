"""A backend's apply() and accumulate() as functions that return their results."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends import Backend
from gradwire_server.plans import BandedMap, Plan


def applied(
    backend: Backend, plan: Plan, x: npt.NDArray[Any], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Let a backend write a plan's result to an array that held other numbers before.

    The array lies between others; that these are left alone is asserted.
    """
    memory = np.full(int(np.prod(plan.output_shape)) + 16, 77.25, dtype)
    y = memory[8:-8].reshape(plan.output_shape)
    backend.apply(plan, x, y)
    assert (memory[:8] == memory.dtype.type(77.25)).all()
    assert (memory[-8:] == memory.dtype.type(77.25)).all()
    return y


def in_pieces(
    backend: Backend, bands: BandedMap, x: npt.NDArray[Any], cuts: list[int], *, gap: int = 1
) -> npt.NDArray[Any]:
    """Add the inputs between cuts along axis 1, one piece after the other, amid other numbers.

    gap  distance of the results' last axis in memory
    """
    memory = np.full((x.shape[0] + 4, bands.outputs, gap * x.shape[2]), 77.25, x.dtype)
    y = memory[2:-2, :, ::gap]
    carried = 0
    for low, high in pairwise(cuts):
        y[:, carried:] = np.nan
        piece = bands.window(0, bands.outputs, low, high)
        backend.accumulate(piece, x[:, low:high], y, axis=1, carried=carried)
        carried = int((bands.start < high).sum())
    result = y.copy()
    y[...] = 77.25
    assert (memory == 77.25).all()
    return result
