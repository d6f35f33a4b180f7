"""PyTorch interpolation along one axis: coordinates, filters and antialias.

Taps are those of torch 2.13 on a CPU with AVX2 or AVX-512, bit for bit, in float64 for float64
tensors and in float32 for all others. Compilers contract products and sums there: where a formula
says fma, the product is not rounded. Output X reads around x, with scale the reciprocal of the
user's scale_factor, or inputs / outputs without one:

    half pixel      x = fma(scale, X + 0.5, -0.5)
    align_corners   x = X * ((inputs - 1) / (outputs - 1))

Source: ATen/native/UpSample.h of torch 2.13 and the bits of its results.

PyTorch's antialiased filters along one axis are Pillow's, as in `sampling.pillow`, with weights
divided by the sum of all.

Source: ATen/native/cpu/UpSampleKernel.cpp of torch 2.13 and the bits of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from gradwire_server.dialects.dialect import FLOAT32, Axis
from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.plan import FMA_EFFORT, fma
from gradwire_server.plans.sampling import Coordinates, Kernel, Taps
from gradwire_server.plans.sines import EFFORT, Doubles, sin, sinf, unsettled


@dataclass(frozen=True, slots=True)
class TorchAxis:
    """The forward along one axis.

    inputs, outputs  lengths in its direction
    scale_factor     the user's, output over input; None where coordinates come from the lengths
    align_corners    whether the corner elements correspond, which scale_factor then has no part in
    compute          type of the arithmetic: float32 or float64
    """

    inputs: int
    outputs: int
    scale_factor: float | None
    align_corners: bool
    compute: np.dtype[np.floating]

    @property
    def stays(self) -> bool:
        """Whether the length stays."""
        return self.inputs == self.outputs

    def scale(self, kind: np.dtype[np.floating] | None = None) -> np.floating:
        """Return input over output in the type `kind`.

        The default type is that of the arithmetic. The reciprocal of scale_factor is taken in
        float64 and then rounded.
        """
        as_type = (kind or self.compute).type
        if self.align_corners:
            last = as_type(max(self.outputs - 1, 1))
            return as_type(as_type(self.inputs - 1) / last if self.outputs > 1 else 0)
        if self.scale_factor is not None:
            return as_type(1 / self.scale_factor)
        return as_type(as_type(self.inputs) / as_type(self.outputs))

    def coordinates(self, outputs: Indices, *, fused: bool) -> Coordinates:
        """Return coordinates of some outputs, not clamped.

        They are fused products and sums, or rounded after the product.
        """
        scale, x = np.asarray(self.scale()), outputs.astype(self.compute)
        if self.align_corners:
            return scale * x
        half = self.compute.type(0.5)
        return fma(scale, x + half, np.asarray(-half)) if fused else scale * (x + half) - half


Effort = Mapping[np.dtype[np.floating], int]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter along an axis.

    sample     computes the taps of some outputs
    most_taps  the most any output may have
    skips      whether an axis that keeps its length is left alone for every scale_factor
    effort     cost of a tap relative to a plain one, by arithmetic type; None where it is plain
    """

    sample: Callable[[TorchAxis, Indices], Taps]
    most_taps: Callable[[TorchAxis], int]
    skips: bool = False
    effort: Effort | None = None

    def axis(self, line: TorchAxis) -> Axis:
        """Return an axis that is read in this way."""
        sides = line.inputs, line.outputs
        effort = 1 if self.effort is None else self.effort[line.compute]
        return Axis(*sides, self.most_taps(line), self.sample, (line,), effort=effort)


# Slopes of Keys's kernel at distance 1: without antialias as OpenCV, with it as Pillow and Keys.
CUBIC_SLOPE: Final = -0.75
ANTIALIAS_SLOPE: Final = -0.5

# Weights by distance and slope.
Piece = Callable[[Coordinates, float], Coordinates]


def _fused(a: Coordinates | float, x: Coordinates, c: float) -> Coordinates:
    return fma(np.asarray(a, x.dtype), x, np.asarray(c, x.dtype))


def _rounded(a: Coordinates, x: Coordinates, c: float) -> Coordinates:
    return a * x + c


def _inside(x: Coordinates, a: float, last: Callable[..., Coordinates] = _rounded) -> Coordinates:
    """Return Keys's weight at distances up to 1, with fused sums.

    It is ((a + 2) x - (a + 3)) x x + 1.

    last  makes the last product and sum, which not every build of the library fuses
    """
    return last(_fused(a + 2, x, -(a + 3)) * x, x, 1)


def _outside(x: Coordinates, a: float, last: Callable[..., Coordinates] = _rounded) -> Coordinates:
    """Return Keys's weight at distances from 1 to 2, with fused sums.

    It is ((a x - 5 a) x + 8 a) x - 4 a; last is as above.
    """
    return last(_fused(_fused(a, x, -5 * a), x, 8 * a), x, -4 * a)


def _floorf(x: Coordinates) -> Coordinates:
    """Round to float32, then down.

    This is C's floorf, which the library calls on doubles as well.
    """
    return np.floor(x.astype(np.float32))


def _nearest(x: Coordinates, line: TorchAxis, *, center: float = 0) -> Taps:
    """Read floorf(x); the coordinate of an element is `center` below its x."""
    return sampling.nearest_taps(_floorf(x), inputs=line.inputs, coordinates=x - center)


def _backward_nearest(line: TorchAxis, outputs: Indices) -> Taps:
    """Read floorf(X * scale), with scale in float32.

    An axis of doubled length reads X >> 1 for every scale.
    """
    if line.outputs == 2 * line.inputs:
        return _nearest((outputs >> 1).astype(np.float64), line)
    return _nearest(outputs.astype(np.float32) * line.scale(FLOAT32), line)


def _forward_nearest(line: TorchAxis, outputs: Indices) -> Taps:
    """Read floorf(X * scale)."""
    return _nearest(outputs.astype(line.compute) * line.scale(), line)


def _backward_nearest_exact(line: TorchAxis, outputs: Indices) -> Taps:
    """Read floorf((X + 0.5) * scale).

    scale is float32, and the product float64.
    """
    return _nearest((outputs + 0.5) * np.float64(line.scale(FLOAT32)), line, center=0.5)


def _forward_nearest_exact(line: TorchAxis, outputs: Indices) -> Taps:
    """Read floorf(max(fma(scale, X + 0.5, -0.5), 0) + 0.5).

    The last sum is float64.
    """
    x = np.maximum(line.coordinates(outputs, fused=True), 0)
    return _nearest(x.astype(np.float64) + 0.5, line, center=0.5)


def _below(x: Coordinates, line: TorchAxis) -> tuple[Indices, Coordinates]:
    """Return the element below x, and the distance to it.

    They are i = min(floorf(x), inputs - 1), which may be negative, and x - i clamped to 0 .. 1.
    """
    index = np.minimum(_floorf(x).astype(np.int64), line.inputs - 1)
    return index, np.minimum(np.maximum(x - index.astype(x.dtype), 0), 1)


def _linear(line: TorchAxis, outputs: Indices) -> Taps:
    """Weight the elements below and above x by distance.

    Element i has weight 1 - (x - i), element i + 1 has x - i; x is at least 0.
    """
    x = line.coordinates(outputs, fused=True)
    index, upper = _below(np.maximum(x, 0), line)
    return sampling.linear_taps(
        np.array([index, np.minimum(index + 1, line.inputs - 1)]), upper_weight=upper, coordinates=x
    )


def _cubic(line: TorchAxis, outputs: Indices, *, fused: bool) -> Taps:
    """Weight four elements by their distances from x.

    They are i - 1 .. i + 2; elements outside move to the edge.
    """
    x = line.coordinates(outputs, fused=fused)
    index, t = _below(x, line)
    inside: Piece = _inside if fused else sampling.keys_inside
    outside: Piece = _outside if fused else sampling.keys_outside
    a = CUBIC_SLOPE
    weight = [outside(t + 1, a), inside(t, a), inside(1 - t, a), outside((1 - t) + 1, a)]
    taps = index[:, np.newaxis] + np.arange(-1, 3)
    return Taps(np.clip(taps, 0, line.inputs - 1), np.array(weight).T, x)


def _bin(line: TorchAxis, outputs: Indices) -> Taps:
    """Average the n elements of each output's bin.

    A bin is floor(X * inputs / outputs) up to ceil((X + 1) * inputs / outputs).
    """
    tap = np.arange(_most_in_bin(line))
    first = outputs * line.inputs // line.outputs
    stop = -(-(outputs + 1) * line.inputs // line.outputs)
    counts = (stop - first)[:, np.newaxis]
    weight = np.where(tap < counts, 1 / counts.astype(line.compute), line.compute.type(0))
    return Taps(np.minimum(first[:, np.newaxis] + tap, line.inputs - 1), weight)


def _most_in_bin(line: TorchAxis) -> int:
    """Return the length of the longest bin.

    It is ceil(inputs / outputs), and one more where bins are not cut at whole elements.
    """
    whole = line.inputs % line.outputs == 0 or line.outputs % line.inputs == 0
    return -(-line.inputs // line.outputs) + (not whole)


def _cubic_filter(*, fused: bool) -> Filter:
    return Filter(partial(_cubic, fused=fused), lambda _: 4, effort=FMA_EFFORT)


_LINEAR: Final = Filter(_linear, lambda _: 2, skips=True)
_SHARED: Final = {
    "linear": _LINEAR,
    "bilinear": _LINEAR,
    "trilinear": _LINEAR,
    "area": Filter(_bin, _most_in_bin, skips=True),
}
FORWARD: Final[Mapping[str, Filter]] = {
    **_SHARED,
    "nearest": Filter(_forward_nearest, lambda _: 1),
    "nearest-exact": Filter(_forward_nearest_exact, lambda _: 1),
    "bicubic": _cubic_filter(fused=True),
}
BACKWARD: Final[Mapping[str, Filter]] = {
    **_SHARED,
    "nearest": Filter(_backward_nearest, lambda _: 1, skips=True),
    "nearest-exact": Filter(_backward_nearest_exact, lambda _: 1),
    # This file of the library is built without contraction.
    "bicubic": _cubic_filter(fused=False),
}


def _keys(x: Coordinates) -> Coordinates:
    x = np.abs(x)
    inside, outside = (piece(x, ANTIALIAS_SLOPE, _fused) for piece in (_inside, _outside))
    return sampling.two_pieces(x, inside, outside)


def _lanczos(x: Coordinates) -> Coordinates:
    """Return sinc(x) sinc(x / 3).

    x / 3 is a double, and so is its sinc.
    """
    x = np.abs(x)
    narrow, third = _sinc(x).astype(np.float64), x.astype(np.float64) / 3
    if x.dtype == np.float64:
        weight = narrow * _sinc(third)
    else:
        weight = narrow * _sinc(third, np.sin)
        doubtful = unsettled(weight)
        weight[doubtful] = narrow[doubtful] * _sinc(third[doubtful])
    return np.where(x < 3, weight, 0).astype(x.dtype)  # noqa: PLR2004 - the radius


def _sinc(x: Coordinates, sine_of: Callable[[Doubles], Doubles] = sin) -> Coordinates:
    y = x * x.dtype.type(np.pi)
    one = y.dtype.type(1)
    single = y.dtype == np.float32
    sine: Coordinates = sinf(y.astype(np.float32)) if single else sine_of(y.astype(np.float64))
    return np.where(y == 0, one, sine / np.where(y == 0, one, y))


def _most_taps(line: TorchAxis, *, radius: int) -> int:
    return sampling.pillow_window(line.scale(), radius=radius, inputs=line.inputs)


def _antialiased(line: TorchAxis, outputs: Indices, *, kernel: Kernel, radius: int) -> Taps:
    """Weigh the elements within the stretched filter's support."""
    weigh, low, x = sampling.pillow(
        kernel, outputs, scale=line.scale(), radius=radius, inputs=line.inputs
    )
    read = sampling.weights_from(weigh, low, taps=_most_taps(line, radius=radius))
    weight = read.weight / sampling.nonzero(sampling.added(np.zeros_like(x), read.weight))
    return Taps(np.minimum(read.index, line.inputs - 1), weight, x)


def _filter(kernel: Kernel, radius: int, effort: Effort | None = None) -> Filter:
    sample = partial(_antialiased, kernel=kernel, radius=radius)
    return Filter(sample, partial(_most_taps, radius=radius), effort=effort)


# The forward leaves axes alone whose length stays, the backward does not.
ANTIALIAS: Final = {
    "bilinear": _filter(sampling.triangle, 1),
    "bicubic": _filter(_keys, 2, FMA_EFFORT),
    "lanczos": _filter(_lanczos, 3, EFFORT),
}
