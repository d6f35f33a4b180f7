"""oneDNN Graph interpolation: interpolate and interpolate_backward.

Spatial axes follow oneDNN's own float32 arithmetic (its src/cpu/resampling_utils.hpp), from the two
shapes alone, never from sizes or scales. With src and dst the lengths of an axis, dst index X reads
src at

    half_pixel      x = ((X + 0.5) * src) / dst - 0.5
    align_corners   x = X * (src - 1) / (dst - 1), and 0 where dst is 1

The published text writes half_pixel as (X + 0.5) / scale - 0.5: the same number, rounded elsewhere.
oneDNN itself runs half_pixel only; align_corners is its published formula in the same arithmetic.
Batch and channel are never resampled.

The sizes, the scales and the sizes tensor determine the shapes. oneDNN's newer text gives sizes
precedence over scales; in InterpolateBackprop-1 they exclude each other. Here all given values must
agree with each other and with the spatial sizes of src and dst.
"""

from __future__ import annotations

from collections.abc import Callable
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
    check_count,
    scaled_sizes,
)
from gradwire_server.errors import InvalidFieldError, shortest
from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Taps


def _require_sizes(attributes: Attributes) -> None:
    """Raise InvalidFieldError if no attribute gives dst's sizes, as oneDNN's Interpolate does."""
    if not (attributes.sizes or attributes.scales or attributes.sizes_tensor):
        raise InvalidFieldError(
            attributes.path("sizes"),
            "is empty, and so are scales and sizes_tensor; give one of the three",
        )


def _check_sizes(attributes: Attributes, *, src: Shape, dst: Shape) -> None:
    """Check that given values agree with spatial sizes src and dst.

    Raises InvalidFieldError if any does not.

    A scale agrees where abs(float32(src) * scale - dst) < 1.
    """
    for field in ("sizes", "scales", "sizes_tensor"):
        check_count(attributes, field, len(src), noun="spatial axis")
    for field in ("sizes", "sizes_tensor"):
        # An empty array is absent.
        for i, (value, expected) in enumerate(zip(getattr(attributes, field), dst, strict=False)):
            if value != expected:
                raise InvalidFieldError(
                    attributes.path(f"{field}[{i}]"),
                    f"is {value}, but dst has {expected} on this axis; give {expected}, or "
                    f"leave {field} empty",
                    came=value,
                    expected=expected,
                )
    for i, (scale, size, expected) in enumerate(zip(attributes.scales, src, dst, strict=False)):
        product = _product(size, scale)
        if not abs(product - expected) < 1:
            raise InvalidFieldError(
                attributes.path(f"scales[{i}]"),
                f"is {shortest(scale)}, which scales src's {size} elements to {product:g}, but dst "
                f"has {expected}; give {expected / size:.9g}, or leave scales empty",
                came=shortest(scale),
                expected=f"{expected / size:.9g}",
            )


def _product(size: int, scale: float) -> float:
    """Return float32(size) * float32(scale), rounded to float32; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return float(np.float32(size) * np.float32(scale))


def _half_pixel(x: Coordinates, src: int, dst: int) -> Coordinates:
    return ((x + np.float32(0.5)) * np.float32(src)) / np.float32(dst) - np.float32(0.5)


def _align_corners(x: Coordinates, src: int, dst: int) -> Coordinates:
    return x if dst == 1 else x * np.float32(src - 1) / np.float32(dst - 1)


# From X of some dst elements in float32, src and dst to their x.
Transformation = Callable[[Coordinates, int, int], Coordinates]
# Each with the longest axis on which src == dst gives x == X: every product is then exact in
# float32, and so is its quotient.
TRANSFORMATIONS: Final[dict[str, tuple[Transformation, int]]] = {
    # (2 * X + 1) * src is at most 5791 * 2896, the largest such product below 2**24.
    "half_pixel": (_half_pixel, 2896),
    # X * (src - 1) is at most 4096 * 4096 = 2**24.
    "align_corners": (_align_corners, 4097),
}


def _nearest(coordinates: Transformation, src: int, dst: int, outputs: Indices) -> Taps:
    """Read the element at roundf(x), half away from zero."""
    x = coordinates(outputs.astype(np.float32), src, dst)
    return sampling.nearest_taps(sampling.half_away(x), inputs=src, coordinates=x)


def _linear(coordinates: Transformation, src: int, dst: int, outputs: Indices) -> Taps:
    """Weight the neighbors lo and hi of x by distance.

    lo = max(trunc(x), 0) has w0 = 1 - w1, and hi = min(ceil(x), src - 1) has w1 = |x - lo|.

    lo is held to the axis as well: beyond 2**23 elements x can round up to src, where oneDNN would
    read foreign memory.
    """
    x = coordinates(outputs.astype(np.float32), src, dst)
    low = np.maximum(np.trunc(x), 0)
    index = sampling.on_axis(np.array([low, np.ceil(x)]), inputs=src)
    return sampling.linear_taps(index, upper_weight=np.abs(x - low), coordinates=x)


def _spatial(attributes: Attributes, rank: int) -> range:
    """Return the spatial axes of a tensor.

    They are all but batch, the first, and channel.
    """
    return range(2, rank) if attributes.data_format == "NCX" else range(1, rank - 1)


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    spatial = _spatial(attributes, len(call.source))
    check_batch_and_channel(call, spatial=spatial)
    if not call.gradient:
        _require_sizes(attributes)
    first, stop = spatial.start, spatial.stop
    _check_sizes(attributes, src=call.source[first:stop], dst=call.result[first:stop])
    coordinates, exact_to = TRANSFORMATIONS[attributes.coordinate_transformation_mode]
    sample, most_taps = (_nearest, 1) if attributes.mode == "nearest" else (_linear, 2)
    return tuple(
        None
        if axis not in spatial or src == dst <= exact_to
        else Axis(src, dst, most_taps, sample, (coordinates, src, dst))
        for axis, (src, dst) in enumerate(zip(call.source, call.result, strict=True))
    )


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    """Return dst's shape.

    Its spatial sizes are sizes, else the sizes tensor, else int64(float32(src) * scale). The
    product is a float32, cut toward zero, as in oneDNN's graph shape inference. Raises
    InvalidFieldError where nothing is given, where what is given disagrees, or where a scale gives
    no usable size.
    """
    _require_sizes(attributes)
    spatial = _spatial(attributes, len(input_shape))
    src = input_shape[spatial.start : spatial.stop]
    dst = tuple(attributes.sizes or attributes.sizes_tensor) or scaled_sizes(
        attributes, "scales", src, attributes.scales, _product
    )
    _check_sizes(attributes, src=src, dst=dst)
    return (*input_shape[: spatial.start], *dst, *input_shape[spatial.stop :])


DIALECTS: Final = both(
    "interpolate_backward",
    "interpolate",
    ranks=range(3, 6),
    axes=_axes,
    output_shape=_output_shape,
)
