"""Where outputs read along one axis: rounding rules and taps, shared by the dialects.

Coordinates are float32 or float64 arrays of shape [outputs]. Every function keeps their type: a
dialect's arithmetic is the type of the coordinates it passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.banded_map import Block
from gradwire_server.plans.cancellation import ask

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

    def blocks(self) -> Iterator[Block]:
        """Yield the taps of some outputs at a time."""
        rows = max(_BLOCK_TAPS // max(self.index.shape[1], 1), 1)
        for first in range(0, len(self.index), rows):
            ask()
            yield self.index[first : first + rows], self.weight[first : first + rows]


@dataclass(frozen=True, slots=True)
class ComputedTaps:
    """What each output reads, computed as it is asked for: some outputs at a time.

    block        takes outputs, int64[some], and returns their taps, [some, taps]
    coordinates  of all outputs, as Taps has them
    """

    block: Callable[[Indices], Taps]
    outputs: int
    taps: int
    coordinates: Coordinates | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield the taps of some outputs at a time; between two blocks, ask whether to go on."""
        rows = max(_BLOCK_TAPS // self.taps, 1)
        for first in range(0, self.outputs, rows):
            ask()
            part = self.block(np.arange(first, min(first + rows, self.outputs)))
            yield part.index, part.weight


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
) -> ComputedTaps:
    """Compute the taps of some outputs at a time, so that what this takes on the way stays small.

    block        takes outputs, int64[some], and returns their taps, [some, taps]
    coordinates  of all outputs; those that a block returns are dropped
    """
    return ComputedTaps(block, outputs, taps, coordinates)


def weights_from(weigh: Callable[[Indices], Coordinates], low: Indices, *, taps: int) -> Taps:
    """Weigh elements low .. low + taps - 1 of each output, some columns at a time.

    low    int64[outputs], first element of each
    weigh  takes elements, int64[outputs, some], and returns their weights
    """
    index = low[:, np.newaxis] + np.arange(taps)
    step = _columns(low)
    if taps <= step:
        return Taps(index, weigh(index))
    weight: Coordinates | None = None
    for first in range(0, taps, step):
        ask()
        part = weigh(index[:, first : first + step])
        if weight is None:
            weight = np.empty(index.shape, part.dtype)
        weight[:, first : first + step] = part
    assert weight is not None  # noqa: S101 - there are taps
    return Taps(index, weight)


def sum_from(
    weigh: Callable[[Indices], Coordinates], low: Indices, *, taps: int, start: Coordinates
) -> Coordinates:
    """Add the weights of elements low .. low + taps - 1 to start as `added` does; keep none."""
    step = _columns(low)
    total = start
    for first in range(0, taps, step):
        ask()
        total = added(total, weigh(low[:, np.newaxis] + np.arange(first, min(first + step, taps))))
    return total


def added(start: Coordinates, weight: Coordinates) -> Coordinates:
    """Add weights, [outputs, taps], to start, [outputs], in ascending order, each sum rounded."""
    outputs, taps = weight.shape
    if taps <= outputs:
        total = start
        for tap in weight.T:
            total = total + tap
        return total
    total = start.copy()
    step = max(_BLOCK_TAPS // max(outputs, 1), 1)
    for first in range(0, taps, step):
        # cumsum adds one after the other; a sum would add halves.
        part = np.concatenate([total[:, np.newaxis], weight[:, first : first + step]], axis=1)
        total = np.cumsum(part, axis=1, dtype=weight.dtype)[:, -1]
    return total


def _columns(low: Indices) -> int:
    return max(_BLOCK_TAPS // max(len(low), 1), 1)
