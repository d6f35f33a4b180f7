"""ONNX Resize along one axis: coordinates, filters and antialias.

With length_original the inputs, length_resized the outputs before they are cut to a whole number,
scale the one over the other and (start, end) the axis's roi, output x_resized reads the input at

    half_pixel            (x_resized + 0.5) / scale - 0.5
    half_pixel_symmetric  the same + (length_original / 2) * (1 - outputs / length_resized)
    pytorch_half_pixel    length_resized > 1 ? (x_resized + 0.5) / scale - 0.5 : 0
    align_corners         x_resized * (length_original - 1) / (length_resized - 1)
    asymmetric            x_resized / scale
    tf_half_pixel_for_nn  (x_resized + 0.5) / scale
    tf_crop_and_resize    length_resized > 1 ? start * (length_original - 1) + x_resized
                          * (end - start) * (length_original - 1) / (length_resized - 1)
                          : 0.5 * (start + end) * (length_original - 1)

in the order of https://onnx.ai/onnx/operators/onnx__Resize.html. In float32 they are rounded as in
ONNX Runtime's GetOriginalCoordinateFromResizedCoordinate, where length_resized is the outputs.

Elements read around x, with their weights:

    nearest  one element, x rounded by nearest_mode
    linear   floor(x) with 1 - t and floor(x) + 1 with t, where t = x - floor(x)
    cubic    floor(x) - 1 to floor(x) + 2, weighted by Keys's kernel of their distances from x

Elements beyond the edge are the edge's, or with exclude_outside weigh nothing, and the weights of
the others are divided by their sum. An output whose elements all lie beyond the edge is then 0.

ONNX Resize's antialias: filters stretched by max(1, 1 / scale), weights divided by their sum.

Elements beyond the edge are the edge's, or with exclude_outside weigh nothing. The specification
leaves a filter alone that need not be stretched; ONNX Runtime runs its own code then too, after
Pillow's. Its window and its roundings are those of SetupUpsampleFilterAntiAlias in
onnxruntime/core/providers/cpu/tensor/upsample_antialias.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Number, Taps, Weigh

Flags = npt.NDArray[np.bool_]
# First element and end of what each output reads, those beyond the edge too; the weights of
# elements, not yet divided; and which of the outputs read at all.
Window = tuple[Indices, Indices, Weigh, Flags]

CROP: Final = "tf_crop_and_resize"
WHOLE: Final = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class OnnxAxis:
    """The forward along one axis.

    The type of scale and width is that of the arithmetic.

    inputs, outputs  lengths in its direction
    scale            outputs over inputs, before outputs were cut to a whole number
    width            scale times inputs
    transformation   the coordinate_transformation_mode
    roi              start and end of what is read, from 0 to 1; used by tf_crop_and_resize alone
    nearest_mode     how nearest rounds
    exclude_outside  whether elements beyond the edge weigh nothing
    slope            that of Keys's kernel; None for other filters
    """

    inputs: int
    outputs: int
    scale: Number
    width: Number
    transformation: str
    roi: tuple[float, float]
    nearest_mode: str
    exclude_outside: bool
    slope: Number | None

    @property
    def kind(self) -> type[Number]:
        """Type of the arithmetic: float32 or float64."""
        return type(self.scale)

    @property
    def in_float32(self) -> bool:
        """Whether the arithmetic is ONNX Runtime's."""
        return self.kind is np.float32

    @property
    def resized(self) -> Number:
        """The length_resized of the formulas.

        ONNX Runtime cuts it to a whole number.
        """
        return self.kind(self.outputs) if self.in_float32 else self.width

    @property
    def last(self) -> Number:
        """The length_original - 1 of the formulas."""
        return self.kind(self.inputs) - self.kind(1)

    @property
    def radius(self) -> int:
        """Radius of the filter that antialias stretches."""
        return 1 if self.slope is None else 2

    @property
    def inverse(self) -> np.float32:
        """The stretch of ONNX Runtime's filters."""
        return max(np.float32(1) / np.float32(self.scale), np.float32(1))

    @property
    def window(self) -> int:
        """Most elements that a stretched filter weighs, those beyond the edges too."""
        if self.in_float32:
            return 2 * math.ceil(self.radius * self.inverse) + 1
        return 2 * math.ceil(self.radius / self.scale)

    def coordinates(self, outputs: Indices) -> tuple[Coordinates, Flags]:
        """Return x of some outputs, and flags of the reading ones.

        Outputs that read nothing get x = 0.
        """
        x = self.positions(outputs)
        reads = self.reads(x)
        return np.where(reads, x, self.kind(0)), reads

    def positions(self, outputs: Indices) -> Coordinates:
        """Return x of some outputs by the formula, without bounds."""
        x, mode = outputs.astype(self.kind), self.transformation
        if mode == CROP:
            return _tf_crop_and_resize(self, x)
        if mode == "half_pixel_symmetric":
            return _half_pixel_symmetric(self, x)
        steps = self.resized - 1
        return sampling.onnx_coordinates(mode, x, self.scale, last=self.last, steps=steps)

    def reads(self, x: Coordinates) -> Flags:
        """Return flags of the coordinates that are read.

        All are, but for tf_crop_and_resize those on the axis only.
        """
        if self.transformation != CROP:
            return np.ones(x.shape, bool)
        on_axis: Flags = (x >= 0) & (x <= self.last)
        return on_axis


def _half_pixel_symmetric(line: OnnxAxis, index: Coordinates) -> Coordinates:
    adjustment = line.kind(line.outputs) / line.width
    offset = np.float64(line.kind(line.inputs) / 2 * (1 - adjustment))
    # ONNX Runtime rounds to float32 once, at the end.
    x = offset + (index.astype(np.float64) + 0.5) / np.float64(line.scale) - 0.5
    return x.astype(line.kind)


def _tf_crop_and_resize(line: OnnxAxis, index: Coordinates) -> Coordinates:
    start, end = (line.kind(each) for each in line.roi)
    # Overflowing coordinates are outside in any case.
    with np.errstate(over="ignore", invalid="ignore"):
        if line.resized > 1:
            step = index * (end - start) * line.last / (line.resized - 1)
            return start * line.last + step
        center = 0.5 * np.float64(start + end) * np.float64(line.last)
        return np.full_like(index, center)


# ONNX Runtime treats values this close to a tie as ties, because its coordinates are rounded:
# https://github.com/microsoft/onnxruntime/issues/28291.
RUNTIME_TIE: Final = 1e-6


def _round_prefer_floor(x: Coordinates, line: OnnxAxis) -> Coordinates:
    whole: Coordinates = np.floor(x)
    return whole + ((x - whole) - 0.5 > _tie(line))


def _round_prefer_ceil(x: Coordinates, line: OnnxAxis) -> Coordinates:
    # Not floor(x + 0.5), whose sum rounds: the number below 0.5 would go to 1.
    whole: Coordinates = np.floor(x)
    return whole + ((x - whole) - 0.5 >= -_tie(line))


def _tie(line: OnnxAxis) -> Number:
    return line.kind(RUNTIME_TIE if line.in_float32 else 0)


def _simple(x: Coordinates, line: OnnxAxis) -> Coordinates:
    return np.ceil(x) if line.scale < 1 else np.trunc(x)


NEAREST_MODES: Final[Mapping[str, Callable[[Coordinates, OnnxAxis], Coordinates]]] = {
    "round_prefer_floor": _round_prefer_floor,
    "round_prefer_ceil": _round_prefer_ceil,
    "floor": lambda x, _: np.floor(x),
    "ceil": lambda x, _: np.ceil(x),
    "simple": _simple,
}


def nearest(line: OnnxAxis, outputs: Indices) -> Taps:
    """Read one element."""
    x, reads = line.coordinates(outputs)
    whole = NEAREST_MODES[line.nearest_mode](x, line)
    if line.exclude_outside:
        reads &= (whole >= 0) & (whole < line.inputs)
    index = sampling.on_axis(whole, inputs=line.inputs)
    weight = reads[:, np.newaxis].astype(line.kind)
    return Taps(index[:, np.newaxis], weight, line.positions(outputs))


def interpolated(line: OnnxAxis, outputs: Indices) -> Taps:
    """Read four elements with Keys's kernel, or two without its slope."""
    x, reads = line.coordinates(outputs)
    whole = np.floor(x)
    t, first = x - whole, 0
    weight = np.array([1 - t, t])
    if line.slope is not None:
        first, weight = -1, sampling.keys_weights(t, line.slope)
    index = whole.astype(np.int64)[:, np.newaxis] + np.arange(first, first + len(weight))
    weight = np.where(reads, weight, line.kind(0)).T
    if line.exclude_outside:
        weight = np.where((index >= 0) & (index < line.inputs), weight, line.kind(0))
        # In order, each sum rounded; cumsum adds so.
        weight = weight / sampling.nonzero(np.cumsum(weight, axis=1)[:, -1])
    return Taps(np.clip(index, 0, line.inputs - 1), weight, line.positions(outputs))


SAMPLES: Final[Mapping[str, tuple[Callable[[OnnxAxis, Indices], Taps], int]]] = {
    "nearest": (nearest, 1),
    "linear": (interpolated, 2),
    "cubic": (interpolated, 4),
}


def antialiased(line: OnnxAxis, outputs: Indices) -> Taps:
    """Read a stretched filter: Keys's kernel, or a triangle without its slope.

    Weights beyond an edge are added to the edge's, and all are divided by their sum. The edge's own
    weight comes first, then those beyond it in ascending order, as in ONNX Runtime.
    """
    coordinates = line.positions(outputs)
    if line.in_float32 and line.inputs == line.outputs:
        # ONNX Runtime copies such an axis, except for outputs outside the roi.
        _, reads = _runtime_center(line, outputs)
        return Taps(outputs[:, np.newaxis], reads[:, np.newaxis].astype(np.float32), coordinates)
    first, stop, weigh, reads = (_runtime_window if line.in_float32 else _window)(line, outputs)
    weigh = sampling.within(weigh, first, stop)
    taps = min(line.window, line.inputs)
    read = sampling.weights_from(weigh, np.clip(first, 0, line.inputs - taps), taps=taps)

    def added_beyond(start: Coordinates, first: int, stop: int) -> Coordinates:
        low, beyond = np.full(len(start), first, np.int64), max(stop - first, 0)
        return sampling.sum_from(weigh, low, taps=beyond, start=start)

    weight, total = read.weight, np.zeros(len(outputs), line.kind)
    if line.exclude_outside:
        total = sampling.added(total, weight)
    else:
        below, above = (int(first.min()), 0), (line.inputs, int(stop.max()))
        total = sampling.added(added_beyond(total, *below), weight)
        total = added_beyond(total, *above)
        weight[:, 0] = added_beyond(weight[:, 0], *below)
        weight[:, -1] = added_beyond(weight[:, -1], *above)
    divisor = sampling.nonzero(total)
    weight = weight * (1 / divisor) if line.in_float32 else weight / divisor
    return Taps(read.index, np.where(reads[:, np.newaxis], weight, line.kind(0)), coordinates)


def _window(line: OnnxAxis, outputs: Indices) -> Window:
    """Take elements around x, and weigh them by scaled distance.

    They are less than radius / scale from x; the kernel gets scale * distance.
    """
    x, reads = line.coordinates(outputs)
    whole = np.floor(x)
    t, below = (x - whole)[:, np.newaxis], whole.astype(np.int64)
    half, slope = line.window // 2, line.slope

    def weigh(index: Indices) -> Coordinates:
        distance: Coordinates = np.abs(line.scale * ((index - below[:, np.newaxis]) - t))
        if slope is None:
            return sampling.triangle(distance)
        inside = sampling.keys_inside(distance, slope)
        outside = sampling.keys_outside(distance, slope)
        return np.where(distance <= 1, inside, np.where(distance < 2, outside, 0))  # noqa: PLR2004

    return below + (1 - half), below + (1 + half), weigh, reads


def _runtime_center(line: OnnxAxis, outputs: Indices) -> tuple[Coordinates, Flags]:
    """Return x + 0.5 by ONNX Runtime's rounding, and reading flags.

    A flag tells whether an output reads at all.
    """
    center = np.float32(0.5) + line.positions(outputs)
    reads = line.reads(center - np.float32(0.5))
    return np.where(reads, center, np.float32(0.5)), reads


def _runtime_window(line: OnnxAxis, outputs: Indices) -> Window:
    """Take elements around c = x + 0.5, as ONNX Runtime does.

    They are floor(c - support + 0.5) up to floor(c + support + 0.5).
    """
    center, reads = _runtime_center(line, outputs)
    support, slope = line.radius * line.inverse, line.slope
    # The reciprocal of the reciprocal, which is not always the scale.
    stretch = 1 / line.inverse
    first, stop = (
        np.floor(edge + np.float32(0.5)).astype(np.int64)
        for edge in (center - support, center + support)
    )

    def weigh(index: Indices) -> Coordinates:
        distance = index.astype(np.float32) - center[:, np.newaxis] + np.float32(0.5)
        distance = distance * stretch
        if slope is None:
            return sampling.triangle(distance)
        return sampling.pillow_keys(distance, slope)

    return first, np.minimum(stop, first + line.window), weigh, reads
