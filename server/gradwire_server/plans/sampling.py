"""Rounding rules and taps along one axis, shared by the dialects.

Coordinates are float32 or float64 arrays of shape [outputs]. Every function keeps their type: a
dialect's arithmetic is the type of the coordinates it passes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.cancellation import ask

Coordinates = npt.NDArray[np.floating[Any]]
Rounding = Callable[[Coordinates], Coordinates]
# Weights by distance.
Kernel = Callable[[Coordinates], Coordinates]
# Weights of elements, int64[outputs, some].
Weigh = Callable[[Indices], Coordinates]
Number = np.floating[Any]
# In the type of the coordinates, or a Python number.
Slope = Number | float

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


def nearest_taps(whole: Coordinates, *, inputs: int, coordinates: Coordinates) -> Taps:
    """Return one tap of weight 1 at each whole coordinate.

    Coordinates are clamped to the axis.
    """
    index = on_axis(whole, inputs=inputs)[:, np.newaxis]
    return Taps(index, np.ones(index.shape, whole.dtype), coordinates)


def linear_taps(index: Indices, *, upper_weight: Coordinates, coordinates: Coordinates) -> Taps:
    """Return two taps: index[0] with 1 - upper_weight, then index[1] with upper_weight."""
    return Taps(index.T, np.array([1 - upper_weight, upper_weight]).T, coordinates)


def onnx_coordinates(
    transformation: str, x: Coordinates, scale: Number, *, last: Number, steps: Number
) -> Coordinates:
    """Return where outputs x read, by ONNX's coordinate_transformation_mode.

    align_corners         x * last / steps; 0 without steps
    pytorch_half_pixel    as half_pixel; 0 without steps
    half_pixel            (x + 0.5) / scale - 0.5
    tf_half_pixel_for_nn  (x + 0.5) / scale
    asymmetric            x / scale

    last   index of the last input
    steps  distance from the first output to the last
    """
    if transformation == "align_corners":
        return x * last / (steps if steps > 0 else 1)
    if transformation == "pytorch_half_pixel" and steps <= 0:
        return np.zeros_like(x)
    stretched = (x if transformation == "asymmetric" else x + 0.5) / scale
    return stretched - 0.5 if transformation in {"half_pixel", "pytorch_half_pixel"} else stretched


def triangle(x: Coordinates) -> Coordinates:
    """Return the weights of linear interpolation at signed distances."""
    weight: Coordinates = np.maximum(1 - np.abs(x), 0)
    return weight


def two_pieces(x: Coordinates, inside: Coordinates, outside: Coordinates) -> Coordinates:
    """Return inside at distances below 1, outside below 2, else 0."""
    return np.where(x < 1, inside, np.where(x < 2, outside, x.dtype.type(0)))  # noqa: PLR2004


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


def pillow_keys(x: Coordinates, a: Slope) -> Coordinates:
    """Return the same kernel at signed distances, with the roundings of Pillow."""
    x = np.abs(x)
    return two_pieces(x, keys_inside(x, a), (((x - 5) * x + 8) * x - 4) * a)


def keys_weights(t: Coordinates, a: Slope) -> Coordinates:
    """Return the kernel's weights of the four elements around x, [4, outputs].

    t  distance of x from the second element
    """
    inner = keys_inside(t, a), keys_inside(1 - t, a)
    return np.array([keys_outside(t + 1, a), *inner, keys_outside(2 - t, a)])


def within(weigh: Weigh, first: Indices, stop: Indices) -> Weigh:
    """Return the same weights, but 0 out of each output's window.

    first, stop  int64[outputs], element first up to, not including, stop
    """

    def weigh_within(index: Indices) -> Coordinates:
        inside = (index >= first[:, np.newaxis]) & (index < stop[:, np.newaxis])
        weight = weigh(index)
        return np.where(inside, weight, weight.dtype.type(0))

    return weigh_within


def pillow_window(scale: Number, *, radius: int, inputs: int) -> int:
    """Return the most elements that `pillow` weighs for an output."""
    return min(2 * math.ceil(_pillow_support(scale, radius)) + 1, inputs)


def _pillow_support(scale: Number, radius: int) -> Number:
    return type(scale)(radius * max(float(scale), 1.0))


def pillow(
    kernel: Kernel, outputs: Indices, *, scale: Number, radius: int, inputs: int
) -> tuple[Weigh, Indices, Coordinates]:
    """Return the weights of elements, each output's first element, and coordinates.

    Filters are stretched where the axis shrinks and cut at its edges, as in Pillow. With scale the
    inputs over the outputs and s = max(scale, 1), output X reads around c = scale * (X + 0.5) the
    elements from trunc(c - radius s + 0.5) up to trunc(c + radius s + 0.5), and weighs element j
    with kernel((j - c + 0.5) / s), all in the type of scale.
    """
    kind, support = type(scale), _pillow_support(scale, radius)
    inverse = float(kind(1 / max(float(scale), 1.0)))
    center = (float(scale) * (outputs + 0.5)).astype(kind)
    first = np.maximum(np.trunc((center - support).astype(np.float64) + 0.5), 0).astype(np.int64)
    stop = np.trunc((center + support).astype(np.float64) + 0.5).astype(np.int64)

    def weigh(index: Indices) -> Coordinates:
        distance = (index.astype(kind) - center[:, np.newaxis]).astype(np.float64) + 0.5
        return kernel((distance * inverse).astype(kind))

    return within(weigh, first, np.minimum(stop, inputs)), first, center - kind(0.5)


def nonzero(total: Coordinates) -> Coordinates:
    """Return totals as divisors of weights, [outputs, 1]; 1 for 0."""
    return np.where(total == 0, total.dtype.type(1), total)[:, np.newaxis]


def weights_from(weigh: Weigh, low: Indices, *, taps: int) -> Taps:
    """Return taps on consecutive elements, in blocks of columns.

    They are elements low .. low + taps - 1 of each output.

    low    int64[outputs], first element of each output
    weigh  takes elements, int64[outputs, some], and returns their weights
    """
    index = low[:, np.newaxis] + np.arange(taps)
    parts = [weigh(each) for each in _element_blocks(low, taps=taps)]
    return Taps(index, np.concatenate(parts, axis=1))


def sum_from(weigh: Weigh, low: Indices, *, taps: int, start: Coordinates) -> Coordinates:
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
    total = start
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
