"""TensorFlow resizing: tf_resize and tf_resize_grad.

The raw ops ResizeBilinear, ResizeNearestNeighbor and ResizeBicubic on NHWC tensors. Arithmetic is
float32 for tensors of every type. With in and out the lengths of an axis, output X reads
the input at

    x = X * scale                   scale = in / out, and with align_corners, where both are above
                                    1, scale = (in - 1) / (out - 1)
    x = (X + 0.5) * scale - 0.5     with half_pixel_centers

each operation rounded. Source: tensorflow/core/util/image_resizer_state.h, and the kernels beside
tensorflow/core/kernels/image/resize_bicubic_op.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_server.dialects.dialect import (
    Attributes,
    Axes,
    Axis,
    OperatorCall,
    Shape,
    both,
    check_batch_and_channel,
    check_result,
)
from gradwire_server.errors import InvalidFieldError
from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Taps

# X + 0.5 is exact in float32 for every index X of an axis up to this long.
EXACT_HALF_PIXEL_AXIS: Final = 2**23

# Height and width, of batch, height, width and channel.
SPATIAL: Final = range(1, 3)

# `kTableSize`: positions between two elements that bicubic tells apart.
CUBIC_STEPS: Final = 1024

# Keys (1981) settles on -0.5, as TensorFlow does with half_pixel_centers; -0.75 is the older one.
CUBIC_SLOPE: Final = -0.5
LEGACY_CUBIC_SLOPE: Final = -0.75

# Below it TensorFlow leaves weights as they are: `1000.0f * std::numeric_limits<float>::min()`.
LEAST_SUM: Final = np.float32(1000) * np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class TensorflowAxis:
    """The forward along one axis.

    It holds lengths in its direction, and the two flags.
    """

    inputs: int
    outputs: int
    align_corners: bool
    half_pixel_centers: bool

    def stretched(self, outputs: Indices) -> Coordinates:
        """Return X * scale of some outputs, in float32.

        With half_pixel_centers it is (X + 0.5) * scale.
        """
        x = outputs.astype(np.float32)
        if self.align_corners and min(self.inputs, self.outputs) > 1:
            return x * (np.float32(self.inputs - 1) / np.float32(self.outputs - 1))
        return (x + self.half) * (np.float32(self.inputs) / np.float32(self.outputs))

    @property
    def half(self) -> np.float32:
        """Distance of an element's center from its index."""
        return np.float32(0.5 if self.half_pixel_centers else 0)


def _nearest(line: TensorflowAxis, outputs: Indices) -> Taps:
    """Read floor(x), or roundf(x) with align_corners.

    With half_pixel_centers the 0.5 is neither subtracted nor added again: floor((X + 0.5) * scale).
    """
    x = line.stretched(outputs)
    whole = sampling.half_away(x) if line.align_corners else np.floor(x)
    return sampling.nearest_taps(whole, inputs=line.inputs, coordinates=x - line.half)


def _bilinear(line: TensorflowAxis, outputs: Indices) -> Taps:
    """Weight floor(x) and ceil(x), clamped to the axis.

    The weights are 1 - l and l, with l = x - floor(x).
    """
    x = line.stretched(outputs) - line.half
    low = np.floor(x)
    index = sampling.on_axis(np.array([low, np.ceil(x)]), inputs=line.inputs)
    return sampling.linear_taps(index, upper_weight=x - low, coordinates=x)


def _bicubic(line: TensorflowAxis, outputs: Indices) -> Taps:
    """Weight four elements by Keys' kernel at rounded x.

    x is rounded to 1/1024, ties to even. With half_pixel_centers those outside are left out and the
    others divided by their sum; otherwise they move to the edge.
    """
    x = line.stretched(outputs) - line.half
    low = np.floor(x)
    between = np.rint((x - low) * np.float32(CUBIC_STEPS)).astype(np.float64) / CUBIC_STEPS
    slope = CUBIC_SLOPE if line.half_pixel_centers else LEGACY_CUBIC_SLOPE
    # Exact for multiples of 1/1024.
    weight = sampling.keys_weights(between, slope).astype(np.float32)
    wanted = low.astype(np.int64) + np.arange(-1, 3)[:, np.newaxis]
    index = np.clip(wanted, 0, line.inputs - 1)
    if line.half_pixel_centers:
        weight = _renormalized(np.where(index == wanted, weight, np.float32(0)))
    return Taps(index.T, weight.T, x)


def _renormalized(weight: Coordinates) -> Coordinates:
    """Multiply float32[taps, outputs] by the reciprocal of its sums.

    The sums are taken tap by tap.
    """
    total = sampling.added(weight[0], weight[1:].T)
    some = np.abs(total) >= LEAST_SUM
    return weight * (np.float32(1) / np.where(some, total, np.float32(1)))


KINDS: Final[dict[str, tuple[Callable[[TensorflowAxis, Indices], Taps], int]]] = {
    "bilinear": (_bilinear, 2),
    "nearest_neighbor": (_nearest, 1),
    "bicubic": (_bicubic, 4),
}


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    check_batch_and_channel(call, spatial=SPATIAL)
    # An empty size is absent.
    check_result(call, dict(zip(SPATIAL, attributes.size, strict=False)), by="size")
    sizes = [(call.source[axis], call.result[axis]) for axis in SPATIAL]
    sample, most_taps = KINDS[attributes.kind]
    flags = attributes.align_corners, attributes.half_pixel_centers
    spatial = [
        None
        if inputs == outputs <= EXACT_HALF_PIXEL_AXIS
        else Axis(inputs, outputs, most_taps, sample, (TensorflowAxis(inputs, outputs, *flags),))
        for inputs, outputs in sizes
    ]
    return (None, *spatial, None)


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    if not attributes.size:
        raise InvalidFieldError(
            attributes.path("size"), "is empty; give height and width, or the output's sizes"
        )
    batch, _, _, channel = input_shape
    return (batch, *attributes.size, channel)


DIALECTS: Final = both(
    "tf_resize_grad", "tf_resize", ranks=range(4, 5), axes=_axes, output_shape=_output_shape
)
