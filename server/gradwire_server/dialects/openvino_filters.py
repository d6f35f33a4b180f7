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
from gradwire_server.plans.sampling import Coordinates, Rounding, Taps, Weigh


@dataclass(frozen=True, slots=True)
class OpenvinoAxis:
    """The forward along one axis.

    inputs, outputs  lengths in its direction, the first without padding
    pads             elements of 0 before and after
    mode             a key of SAMPLES; empty for an axis that is not resampled
    scale            outputs over padded length, float32, or what the caller gave for it
    transformation   coordinate_transformation_mode
    rounding         a key of ROUNDINGS, with nearest
    stretch          factor of distances in linear: scale with antialias, else 1
    cube_coeff       slope of the cubic kernels
    """

    inputs: int
    outputs: int
    pads: tuple[int, int]
    mode: str
    scale: float
    transformation: str
    rounding: str
    stretch: float
    cube_coeff: float

    @property
    def length(self) -> int:
        """Length with padding."""
        return sum(self.pads, self.inputs)

    def coordinates(self, outputs: Indices) -> Coordinates:
        """Return x of some outputs, in float32."""
        x = outputs.astype(np.float32)
        if self.scale == 1 or self.length == self.outputs:
            return x
        last, steps = np.float32(self.length - 1), np.float32(self.outputs - 1)
        # A tiny scale may overflow float32; such coordinates are outside.
        with np.errstate(over="ignore"):
            x = sampling.onnx_coordinates(
                self.transformation, x, np.float32(self.scale), last=last, steps=steps
            )
        return np.minimum(x, np.finfo(np.float32).max)

    @property
    def ratio(self) -> np.float64:
        """Padded length over outputs."""
        return np.float64(self.length / self.outputs)

    @property
    def window(self) -> int:
        """Most elements that linear and the pillow modes weigh.

        Those of the padding count.
        """
        if self.mode == "linear":
            reach = 2 * math.ceil(2 / self.stretch) if self.scale <= 1 else 4
            return min(reach + 1, self.length)
        return sampling.pillow_window(self.ratio, radius=PILLOW[self.mode], inputs=self.length)

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


def linear(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Weigh elements by a triangle, and normalize.

    The divisor is the sum of the weights on the padded axis.
    """
    x, window, stretch = line.coordinates(outputs), line.window, np.float32(line.stretch)
    reach = window // 2 if window < line.length else line.length
    near = np.float32(-reach), np.float32(line.length + reach)
    middle = np.clip(sampling.half_away(x), *near).astype(np.int64)

    def weigh(index: Indices) -> Coordinates:
        distance = stretch * (x[:, np.newaxis] - index.astype(np.float32))
        return stretch * sampling.triangle(distance)

    return _divided(line, weigh, np.clip(middle - reach, 0, line.length - window), x)


def pillow(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Weigh as Pillow does, in float64.

    The kernel is the triangle, or Keys' with cube_coeff.
    """
    radius = PILLOW[line.mode]
    keys = partial(sampling.pillow_keys, a=line.cube_coeff)
    kernel = sampling.triangle if radius == 1 else keys
    read = sampling.pillow(kernel, outputs, scale=line.ratio, radius=radius, inputs=line.length)
    return _divided(line, *read)


def _divided(line: OpenvinoAxis, weigh: Weigh, low: Indices, x: Coordinates) -> Taps:
    """Divide weights by their window's sum, unless the sum is 0.

    The window is on the padded axis. Padding counts in the sum, which is taken tap by tap, but has
    no taps.

    low  first element of each output's window, which holds all that has a weight
    x    coordinates, in the type of the weights
    """
    taps, total = min(line.window, line.inputs), np.zeros_like(x)
    if line.length == line.inputs:
        read = sampling.weights_from(weigh, low, taps=taps)
        total = sampling.added(total, read.weight)
    else:
        total = sampling.sum_from(weigh, low, taps=line.window, start=total)
        # Elements not in the window have no weight.
        low = np.clip(low, line.pads[0], line.pads[0] + line.inputs - taps)
        read = sampling.weights_from(weigh, low, taps=taps)
    return line.placed(read.index, read.weight / sampling.nonzero(total), x)


def padding(line: OpenvinoAxis, outputs: Indices) -> Taps:
    """Read each element at its padded position.

    The axis is not resampled.
    """
    index = outputs[:, np.newaxis]
    return line.placed(index, np.ones(index.shape, np.float32), outputs.astype(np.float64))


# Radii of the filters.
PILLOW: Final = {"bilinear_pillow": 1, "bicubic_pillow": 2}
SAMPLES: Final[dict[str, Callable[[OpenvinoAxis, Indices], Taps]]] = {
    "": padding,
    "nearest": nearest,
    "linear": linear,
    "linear_onnx": linear_onnx,
    "cubic": cubic,
    **dict.fromkeys(PILLOW, pillow),
}
# Taps of the modes without a window.
MOST_TAPS: Final = {"": 1, "nearest": 1, "linear_onnx": 2, "cubic": 4}
