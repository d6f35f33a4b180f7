"""Where outputs read along one axis: rounding rules and taps, shared by the dialects.

Coordinates are float32 or float64 arrays of shape [outputs]. Every function keeps their type: a
dialect's arithmetic is the type of the coordinates it passes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.interruption import ask

Coordinates = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int64]
Rounding = Callable[[Coordinates], Coordinates]

# Taps that are computed at once: their intermediate numbers fit a core's cache.
_BLOCK_TAPS = 1 << 15


@dataclass(frozen=True, slots=True)
class Taps:
    """What each output reads: the arguments of `BandedMap.from_taps`.

    index        int64[outputs, taps]     input elements, all on the axis; repeats are allowed
    weight       floating[outputs, taps]  their weights, in the type of the coordinates
    coordinates  floating[outputs]        where each output reads, not clamped: for people alone,
                                          and None where there is no such number
    """

    index: Indices
    weight: Coordinates
    coordinates: Coordinates | None = None


def half_down(x: Coordinates) -> Coordinates:
    """Round to nearest, ties downward: ceil(x - 0.5), the difference rounded to x's type."""
    rounded: Coordinates = np.ceil(x - 0.5)
    return rounded


def half_up(x: Coordinates) -> Coordinates:
    """Round to nearest, ties upward: floor(x + 0.5), the sum rounded to x's type."""
    rounded: Coordinates = np.floor(x + 0.5)
    return rounded


def half_away(x: Coordinates) -> Coordinates:
    """Round finite x to nearest, ties away from zero: C's round() and roundf().

    Exact, unlike floor(x + 0.5), whose sum rounds: the float below 0.5 would go to 1, and above
    2**23 odd whole numbers of float32 would move.
    """
    whole: Coordinates = np.trunc(x)
    rounded: Coordinates = np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)  # noqa: PLR2004
    return rounded


def floor(x: Coordinates) -> Coordinates:
    """Round toward smaller numbers."""
    rounded: Coordinates = np.floor(x)
    return rounded


def ceil(x: Coordinates) -> Coordinates:
    """Round toward larger numbers."""
    rounded: Coordinates = np.ceil(x)
    return rounded


def on_axis(x: Coordinates, *, inputs: int) -> Indices:
    """Turn whole coordinates into indices 0 .. inputs - 1; those outside go to the nearer edge."""
    edge = x.dtype.type(inputs - 1)
    # This clamp makes the cast safe. The other one is for inputs - 1 that the type rounds up.
    index: Indices = np.minimum(np.maximum(x, 0), edge).astype(np.int64)
    return np.minimum(index, inputs - 1) if int(edge) >= inputs else index


def nearest_taps(
    whole: Coordinates, *, inputs: int, coordinates: Coordinates | None = None
) -> Taps:
    """One tap of weight 1 at each whole coordinate, clamped to the axis."""
    index = on_axis(whole, inputs=inputs)[:, np.newaxis]
    return Taps(index, np.ones(index.shape, whole.dtype), coordinates)


def linear_taps(
    index: Indices, *, upper_weight: Coordinates, coordinates: Coordinates | None = None
) -> Taps:
    """Two taps: index[0] with weight 1 - upper_weight, then index[1] with upper_weight."""
    return Taps(index.T, np.array([1 - upper_weight, upper_weight]).T, coordinates)


def in_blocks(
    block: Callable[[Indices], Taps],
    *,
    outputs: int,
    taps: int,
    coordinates: Coordinates | None = None,
) -> Taps:
    """Compute the taps of some outputs at a time, so that what this takes on the way stays small.

    Between two blocks it asks whether to go on.

    block        takes outputs, int64[some], and returns their taps, [some, taps]
    coordinates  of all outputs; those that a block returns are dropped
    """
    some = max(_BLOCK_TAPS // taps, 1)
    if outputs <= some:
        return replace(block(np.arange(outputs)), coordinates=coordinates)
    index = np.empty((outputs, taps), np.int64)
    weight: Coordinates | None = None
    for first in range(0, outputs, some):
        ask()
        part = block(np.arange(first, min(first + some, outputs)))
        if weight is None:
            weight = np.empty((outputs, taps), part.weight.dtype)
        index[first : first + some], weight[first : first + some] = part.index, part.weight
    assert weight is not None  # noqa: S101 - there are outputs
    return Taps(index, weight, coordinates)
