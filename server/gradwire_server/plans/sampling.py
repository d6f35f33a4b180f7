"""Rounding rules and taps along one axis, shared by the dialects.

Coordinates are float32 or float64 arrays of shape [outputs]. Every function keeps their type: a
dialect's arithmetic is the type of the coordinates it passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.cancellation import ask

Coordinates = npt.NDArray[np.floating[Any]]
Rounding = Callable[[Coordinates], Coordinates]
# In the type of the coordinates, or a Python number.
Slope = np.floating[Any] | float

# Taps computed at once: their intermediate values fit a core's cache.
BLOCK_TAPS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps of some outputs.

    index        int64[outputs, taps]     input elements, all on the axis; repeats are allowed
    weight       floating[outputs, taps]  their weights, in the type of the coordinates
    coordinates  floating[outputs]        where each output reads, not clamped, for display only;
                                          None if there is no such number
    """

    index: Indices
    weight: Coordinates
    coordinates: Coordinates | None = None


def half_down(x: Coordinates) -> Coordinates:
    """Round to nearest, ties downward.

    ceil(x - 0.5), with the difference rounded to x's type.
    """
    rounded: Coordinates = np.ceil(x - 0.5)
    return rounded


def half_up(x: Coordinates) -> Coordinates:
    """Round to nearest, ties upward.

    floor(x + 0.5), with the sum rounded to x's type.
    """
    rounded: Coordinates = np.floor(x + 0.5)
    return rounded


def half_away(x: Coordinates) -> Coordinates:
    """Round finite x to nearest, ties away from zero.

    C's round() and roundf().

    Exact, unlike floor(x + 0.5), whose sum rounds: the float below 0.5 would go to 1, and above
    2**23 odd whole numbers of float32 would move.
    """
    whole: Coordinates = np.trunc(x)
    rounded: Coordinates = np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)  # noqa: PLR2004
    return rounded


def on_axis(x: Coordinates, *, inputs: int) -> Indices:
    """Convert whole coordinates to indices, clamped to 0 .. inputs - 1."""
    edge = x.dtype.type(inputs - 1)
    # This clamp makes the cast safe; the second handles inputs - 1 rounded up by the type.
    index: Indices = np.minimum(np.maximum(x, 0), edge).astype(np.int64)
    return np.minimum(index, inputs - 1) if int(edge) >= inputs else index


def nearest_taps(
    whole: Coordinates, *, inputs: int, coordinates: Coordinates | None = None
) -> Taps:
    """Return one tap of weight 1 at each whole coordinate.

    Coordinates are clamped to the axis.
    """
    index = on_axis(whole, inputs=inputs)[:, np.newaxis]
    return Taps(index, np.ones(index.shape, whole.dtype), coordinates)


def linear_taps(
    index: Indices, *, upper_weight: Coordinates, coordinates: Coordinates | None = None
) -> Taps:
    """Return two taps: index[0] with 1 - upper_weight, then index[1] with upper_weight."""
    return Taps(index.T, np.array([1 - upper_weight, upper_weight]).T, coordinates)


def keys_inside(x: Coordinates, a: Slope) -> Coordinates:
    """Return Keys's cubic kernel (1981, equation 4) at distances up to 1.

    a is its slope at distance 1.
    """
    weight: Coordinates = ((a + 2) * x - (a + 3)) * x * x + 1
    return weight


def keys_outside(x: Coordinates, a: Slope) -> Coordinates:
    """Return the same kernel at distances from 1 to 2."""
    weight: Coordinates = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return weight


def keys_weights(t: Coordinates, a: Slope) -> Coordinates:
    """Return the kernel's weights of the four elements around x, [4, outputs].

    t  distance of x from the second element
    """
    inner = keys_inside(t, a), keys_inside(1 - t, a)
    return np.array([keys_outside(t + 1, a), *inner, keys_outside(2 - t, a)])


def weights_from(weigh: Callable[[Indices], Coordinates], low: Indices, *, taps: int) -> Taps:
    """Return taps on consecutive elements, in blocks of columns.

    They are elements low .. low + taps - 1 of each output.

    low    int64[outputs], first element of each output
    weigh  takes elements, int64[outputs, some], and returns their weights
    """
    index = low[:, np.newaxis] + np.arange(taps)
    parts = [weigh(each) for each in _element_blocks(low, taps=taps)]
    return Taps(index, np.concatenate(parts, axis=1))


def sum_from(
    weigh: Callable[[Indices], Coordinates], low: Indices, *, taps: int, start: Coordinates
) -> Coordinates:
    """Add the weights of consecutive elements to start, in blocks.

    The elements are low .. low + taps - 1; sums are those of `added`.
    """
    total = start
    for elements in _element_blocks(low, taps=taps):
        total = added(total, weigh(elements))
    return total


def added(start: Coordinates, weight: Coordinates) -> Coordinates:
    """Add weights, [outputs, taps], to start, [outputs].

    They are added in ascending order, and each sum is rounded.
    """
    outputs, taps = weight.shape
    if taps <= outputs:
        total = start
        for tap in weight.T:
            total = total + tap
        return total
    total = start.copy()
    step = max(BLOCK_TAPS // max(outputs, 1), 1)
    for first in range(0, taps, step):
        # cumsum adds sequentially; sum adds pairwise.
        part = np.concatenate([total[:, np.newaxis], weight[:, first : first + step]], axis=1)
        total = np.cumsum(part, axis=1, dtype=weight.dtype)[:, -1]
    return total


def _element_blocks(low: Indices, *, taps: int) -> Iterator[Indices]:
    """Yield the elements that each output weighs, in blocks of columns."""
    step = max(BLOCK_TAPS // max(len(low), 1), 1)
    for first in range(0, taps, step):
        ask()
        yield low[:, np.newaxis] + np.arange(first, min(first + step, taps))
