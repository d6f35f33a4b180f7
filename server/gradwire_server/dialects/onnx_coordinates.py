"""One axis of an ONNX Resize: where each output element reads.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.sampling import Coordinates, Indices

Flags = npt.NDArray[np.bool_]
Number = np.floating[Any]

CROP: Final = "tf_crop_and_resize"
WHOLE: Final = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class OnnxAxis:
    """The forward along one axis; the type of scale and width is that of the arithmetic.

    inputs, outputs  lengths in its direction
    scale            outputs over inputs, before outputs were cut to a whole number
    width            scale times inputs
    transformation   the coordinate_transformation_mode
    roi              start and end of what is read, from 0 to 1; used by tf_crop_and_resize alone
    exclude_outside  whether elements beyond the edge weigh nothing
    """

    inputs: int
    outputs: int
    scale: Number
    width: Number
    transformation: str
    roi: tuple[float, float] = WHOLE
    exclude_outside: bool = False

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
        """The length_resized of the formulas, which ONNX Runtime cuts to a whole number."""
        return self.kind(self.outputs) if self.in_float32 else self.width

    @property
    def last(self) -> Number:
        """The length_original - 1 of the formulas."""
        return self.kind(self.inputs) - self.kind(1)

    def coordinates(self, outputs: Indices) -> tuple[Coordinates, Flags]:
        """Return x of some outputs, and which of them read at all; the others get x = 0."""
        x = self.positions(outputs)
        reads = self.reads(x)
        return np.where(reads, x, self.kind(0)), reads

    def positions(self, outputs: Indices) -> Coordinates:
        """Return x of some outputs by the formula, wherever that is."""
        return TRANSFORMATIONS[self.transformation](self, outputs.astype(self.kind))

    def reads(self, x: Coordinates) -> Flags:
        """Tell which coordinates are read: all, but for tf_crop_and_resize those on the axis."""
        if self.transformation != CROP:
            return np.ones(x.shape, bool)
        on_axis: Flags = (x >= 0) & (x <= self.last)
        return on_axis


def _half_pixel(line: OnnxAxis, index: Coordinates) -> Coordinates:
    return (index + 0.5) / line.scale - 0.5


def _half_pixel_symmetric(line: OnnxAxis, index: Coordinates) -> Coordinates:
    adjustment = line.kind(line.outputs) / line.width
    offset = np.float64(line.kind(line.inputs) / 2 * (1 - adjustment))
    # ONNX Runtime rounds to float32 once, at the end.
    x = offset + (index.astype(np.float64) + 0.5) / np.float64(line.scale) - 0.5
    return x.astype(line.kind)


def _pytorch_half_pixel(line: OnnxAxis, index: Coordinates) -> Coordinates:
    return _half_pixel(line, index) if line.resized > 1 else np.zeros_like(index)


def _align_corners(line: OnnxAxis, index: Coordinates) -> Coordinates:
    return index if line.outputs == 1 else index * line.last / (line.resized - 1)


def _asymmetric(line: OnnxAxis, index: Coordinates) -> Coordinates:
    return index / line.scale


def _tf_half_pixel_for_nn(line: OnnxAxis, index: Coordinates) -> Coordinates:
    return (index + 0.5) / line.scale


def _tf_crop_and_resize(line: OnnxAxis, index: Coordinates) -> Coordinates:
    start, end = (line.kind(each) for each in line.roi)
    # What overflows lies outside, whatever it becomes.
    with np.errstate(over="ignore", invalid="ignore"):
        if line.resized > 1:
            step = index * (end - start) * line.last / (line.resized - 1)
            return start * line.last + step
        center = 0.5 * np.float64(start + end) * np.float64(line.last)
        return np.full_like(index, center)


TRANSFORMATIONS: Final[Mapping[str, Callable[[OnnxAxis, Coordinates], Coordinates]]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    CROP: _tf_crop_and_resize,
}
