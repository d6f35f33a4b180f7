"""OpenVINO Interpolate-11 along one axis: coordinates, filters and padding.

The axis is first padded with zeros. With `length` its padded length and scale the output's over it,
output X reads at x, in float32 and by true division:

    half_pixel            (X + 0.5) / scale - 0.5
    pytorch_half_pixel    the same; 0 where there is one output
    asymmetric            X / scale
    tf_half_pixel_for_nn  (X + 0.5) / scale
    align_corners         X * (length - 1) / (outputs - 1); 0 where there is one output

and at X itself where scale is 1 or the length stays. The pillow modes have float64 coordinates of
their own. Source: src/core/reference/src/op/interpolate.cpp and interpolate_pil.hpp of OpenVINO.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Rounding, Taps


@dataclass(frozen=True, slots=True)
class OpenvinoAxis:
    """The forward along one axis.

    inputs, outputs  lengths in its direction, the first without padding
    pads             elements of 0 before and after
    scale            outputs over padded length, float32, or what the caller gave for it
    transformation   coordinate_transformation_mode
    rounding         a key of ROUNDINGS, with nearest
    stretch          factor of distances in linear: scale with antialias, else 1
    cube_coeff       slope of the cubic kernels
    """

    inputs: int
    outputs: int
    pads: tuple[int, int]
    scale: float
    transformation: str
    rounding: str
    stretch: float
    cube_coeff: float

    @property
    def length(self) -> int:
        """Length with padding."""
        return sum(self.pads, self.inputs)

    @property
    def stays(self) -> bool:
        """Whether coordinates are the outputs' own."""
        return self.scale == 1 or self.length == self.outputs

    def coordinates(self, outputs: Indices) -> Coordinates:
        """Return x of some outputs, in float32."""
        x = outputs.astype(np.float32)
        if self.stays:
            return x
        half, scale = np.float32(0.5), np.float32(self.scale)
        if self.transformation == "align_corners":
            last = np.float32(max(self.outputs - 1, 1))
            return x * np.float32(self.length - 1) / last
        if self.transformation == "pytorch_half_pixel" and self.outputs == 1:
            return np.zeros_like(x)
        # A tiny scale may overflow float32; such coordinates are outside.
        shift = np.float32(0) if self.transformation == "asymmetric" else half
        with np.errstate(over="ignore"):
            stretched: Coordinates = np.minimum((x + shift) / scale, np.finfo(np.float32).max)
        centered = self.transformation in {"half_pixel", "pytorch_half_pixel"}
        return stretched - half if centered else stretched

    def placed(self, index: Indices, weight: Coordinates, x: Coordinates) -> Taps:
        """Convert taps and x on the padded axis to the axis.

        Padding has no weight.
        """
        index = index - self.pads[0]
        there = (index >= 0) & (index < self.inputs)
        return Taps(
            np.clip(index, 0, self.inputs - 1),
            np.where(there, weight, weight.dtype.type(0)),
            x - x.dtype.type(self.pads[0]),
        )


def _half_down(x: Coordinates) -> Coordinates:
    middle = np.trunc(x) + np.float32(0.5)
    return np.where(x == middle, np.floor(x), sampling.half_away(x))


ROUNDINGS: Final[dict[str, Rounding]] = {
    "round_prefer_floor": _half_down,
    "round_prefer_ceil": sampling.half_away,
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Read the element at x, rounded.

    Rounding simple cuts toward 0, or rounds up where the axis shrinks.
    """
    simple = np.ceil if line.scale < 1 else np.trunc
    x = line.coordinates(outputs)
    whole = ROUNDINGS.get(line.rounding, simple)(x)
    index = sampling.on_axis(whole, inputs=line.length)[:, np.newaxis]
    return line.placed(index, np.ones(index.shape, np.float32), x)


def linear_onnx(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Weight the two neighbors of x by distance.

    x is clamped to the axis.
    """
    coordinates = line.coordinates(outputs)
    x = np.clip(coordinates, np.float32(0), np.float32(line.length - 1))
    low = sampling.on_axis(x, inputs=line.length)
    high = np.minimum(low + 1, line.length - 1)
    # On the last element both halves meet.
    upper = np.where(low == high, np.float32(0.5), np.abs(x - low.astype(np.float32)))
    lower = np.where(low == high, np.float32(0.5), np.abs(x - high.astype(np.float32)))
    return line.placed(np.array([low, high]).T, np.array([lower, upper]).T, coordinates)


def cubic(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Weigh four elements by Keys' kernel; those outside move to the edge."""
    x, a = line.coordinates(outputs), np.float32(line.cube_coeff)
    low = np.floor(x)
    weight = sampling.keys_weights(x - low, a)
    base = np.clip(low, np.float32(-2), np.float32(line.length + 2)).astype(np.int64)
    index = base + np.arange(-1, 3)[:, np.newaxis]
    return line.placed(np.clip(index, 0, line.length - 1).T, weight.T, x)


def linear_window(line: OpenvinoAxis) -> int:
    """Return how many elements of the padded axis linear weighs at most."""
    return min(2 * math.ceil(2 / line.stretch) + 1 if line.scale <= 1 else 5, line.length)


def linear(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Weigh elements by a triangle, and normalize.

    The divisor is the sum of the weights on the padded axis.
    """
    x, window, stretch = line.coordinates(outputs), linear_window(line), np.float32(line.stretch)
    reach = window // 2 if window < line.length else line.length
    near = np.float32(-reach), np.float32(line.length + reach)
    middle = np.clip(sampling.half_away(x), *near).astype(np.int64)

    def weigh(index: Indices) -> Coordinates:
        distance = stretch * (x[:, np.newaxis] - index.astype(np.float32))
        triangle = np.maximum(np.float32(1) - np.abs(distance), np.float32(0))
        weight: Coordinates = stretch * triangle
        return weight

    low = np.clip(middle - reach, 0, line.length - window)
    return _divided(line, weigh, low, window=window, x=x)


def pillow_window(line: OpenvinoAxis, *, radius: int) -> int:
    """Return the most elements that a pillow mode weighs.

    They are elements of the padded axis.
    """
    return min(2 * math.ceil(radius * max(line.length / line.outputs, 1.0)) + 1, line.length)


def pillow(line: OpenvinoAxis, outputs: Indices, *, radius: int) -> Taps:
    """Weigh as Pillow does, in float64.

    The kernel is stretched where the axis shrinks, and cut at edges. The kernel of radius 1 is the
    triangle, that of radius 2 is Keys' with cube_coeff.
    """
    scale = line.length / line.outputs
    stretched = max(scale, 1.0)
    center, support = (outputs + 0.5) * scale, radius * stretched
    low = np.maximum(np.trunc(center - support + 0.5), 0).astype(np.int64)
    stop = np.minimum(np.trunc(center + support + 0.5).astype(np.int64), line.length)

    def weigh(index: Indices) -> Coordinates:
        x = np.abs((index - center[:, np.newaxis] + 0.5) * (1 / stretched))
        kernel = np.maximum(1 - x, 0) if radius == 1 else _pillow_keys(x, line.cube_coeff)
        within = (index >= low[:, np.newaxis]) & (index < stop[:, np.newaxis])
        return np.where(within, kernel, 0)

    window = pillow_window(line, radius=radius)
    return _divided(line, weigh, low, window=window, x=center - 0.5)


def _pillow_keys(x: Coordinates, a: float) -> Coordinates:
    outside = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, sampling.keys_inside(x, a), np.where(x < 2, outside, 0))  # noqa: PLR2004


def _divided(
    line: OpenvinoAxis,
    weigh: Callable[[Indices], Coordinates],
    low: Indices,
    *,
    window: int,
    x: Coordinates,
) -> Taps:
    """Divide weights by their window's sum, unless the sum is 0.

    The window is on the padded axis. Padding counts in the sum, which is taken tap by tap, but has
    no taps.

    low     first element of each output's window, which holds all that has a weight
    window  elements of each
    x       coordinates, in the type of the weights
    """
    total = np.zeros_like(x)
    if line.length == line.inputs:
        read = sampling.weights_from(weigh, low, taps=window)
        total = sampling.added(total, read.weight)
    else:
        total = sampling.sum_from(weigh, low, taps=window, start=total)
        taps, first = min(window, line.inputs), line.pads[0]
        # Elements not in the window have no weight.
        low = np.clip(low, first, first + line.inputs - taps)
        read = sampling.weights_from(weigh, low, taps=taps)
    divisor = np.where(total == 0, total.dtype.type(1), total)
    return line.placed(read.index, read.weight / divisor[:, np.newaxis], x)


def padding(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Read each element at its padded position.

    The axis is not resampled.
    """
    index = outputs[:, np.newaxis]
    return line.placed(index, np.ones(index.shape, np.float32), outputs.astype(np.float64))


PILLOW: Final = {"bilinear_pillow": 1, "bicubic_pillow": 2}
SAMPLES: Final[dict[str, Callable[[OpenvinoAxis, Indices], Taps]]] = {
    "nearest": nearest,
    "linear": linear,
    "linear_onnx": linear_onnx,
    "cubic": cubic,
    **{mode: partial(pillow, radius=radius) for mode, radius in PILLOW.items()},
}
MOST_TAPS: Final = {"nearest": 1, "linear_onnx": 2, "cubic": 4}
# Elements of the padded axis that the other modes weigh at most.
WINDOWS: Final[dict[str, Callable[[OpenvinoAxis], int]]] = {
    "linear": linear_window,
    **{mode: partial(pillow_window, radius=radius) for mode, radius in PILLOW.items()},
}
