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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from gradwire_server.dialects.dialect import (
    Axes,
    Axis,
    Dialect,
    OperatorCall,
    Shape,
    check_batch_and_channel,
)
from gradwire_server.errors import InvalidFieldError, counted, shortest
from gradwire_server.plans import sampling
from gradwire_server.plans.sampling import Coordinates, Taps

# Beyond it int64(float) and float(int64) no longer name the same number.
LARGEST_INFERRED_SIZE: Final = 2**53


class OnednnSizing(Protocol):
    """Attributes for dst's spatial sizes.

    Each is empty or has one value per spatial axis.

    sizes         spatial sizes of dst
    scales        spatial scales, dst over src
    sizes_tensor  values of the optional third input, spatial sizes of dst
    """

    sizes: Sequence[int]
    scales: Sequence[float]
    sizes_tensor: Sequence[int]


def require_sizes(attributes: OnednnSizing, operator: str) -> None:
    """Raise InvalidFieldError if no attribute gives dst's sizes, as oneDNN's Interpolate does."""
    if not (attributes.sizes or attributes.scales or attributes.sizes_tensor):
        raise InvalidFieldError(
            f"operator.{operator}.sizes",
            "is empty, and so are scales and sizes_tensor; give one of the three",
        )


def inferred_sizes(attributes: OnednnSizing, operator: str, *, src: Shape) -> Shape:
    """Return dst's spatial sizes.

    They are sizes, else the sizes tensor, else int64(float32(src) * scale). The product is a
    float32, cut toward zero, as in oneDNN's graph shape inference. Raises InvalidFieldError where
    nothing is given, where what is given disagrees, or where a scale gives no usable size.
    """
    require_sizes(attributes, operator)
    _check_lengths(attributes, operator, spatial=len(src))
    dst = tuple(attributes.sizes or attributes.sizes_tensor) or tuple(
        _scaled(size, scale, field=f"operator.{operator}.scales[{i}]")
        for i, (size, scale) in enumerate(zip(src, attributes.scales, strict=True))
    )
    check_sizes(attributes, operator, src=src, dst=dst)
    return dst


def check_sizes(attributes: OnednnSizing, operator: str, *, src: Shape, dst: Shape) -> None:
    """Check that given values agree with spatial sizes src and dst.

    Raises InvalidFieldError if any does not.

    A scale agrees where abs(float32(src) * scale - dst) < 1.
    """
    _check_lengths(attributes, operator, spatial=len(src))
    for field, values in (("sizes", attributes.sizes), ("sizes_tensor", attributes.sizes_tensor)):
        # An empty array is absent.
        for i, (value, expected) in enumerate(zip(values, dst, strict=False)):
            if value != expected:
                raise InvalidFieldError(
                    f"operator.{operator}.{field}[{i}]",
                    f"is {value}, but dst has {expected} on this axis; give {expected}, or "
                    f"leave {field} empty",
                    came=value,
                    expected=expected,
                )
    for i, (scale, size, expected) in enumerate(zip(attributes.scales, src, dst, strict=False)):
        product = _product(size, scale)
        if not abs(product - expected) < 1:
            raise InvalidFieldError(
                f"operator.{operator}.scales[{i}]",
                f"is {shortest(scale)}, which scales src's {size} elements to {product:g}, but dst "
                f"has {expected}; give {expected / size:.9g}, or leave scales empty",
                came=shortest(scale),
                expected=f"{expected / size:.9g}",
            )


def _check_lengths(attributes: OnednnSizing, operator: str, *, spatial: int) -> None:
    lengths = {
        "sizes": len(attributes.sizes),
        "scales": len(attributes.scales),
        "sizes_tensor": len(attributes.sizes_tensor),
    }
    for field, length in lengths.items():
        if length not in {0, spatial}:
            raise InvalidFieldError(
                f"operator.{operator}.{field}",
                f"has {counted(length, 'value')} for tensors of {spatial + 2} axes, {spatial} of "
                f"them spatial; give {spatial}, or none",
                came=length,
                expected=spatial,
            )


def _product(size: int, scale: float) -> float:
    """Return float32(size) * float32(scale), rounded to float32; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return float(np.float32(size) * np.float32(scale))


def _scaled(size: int, scale: float, *, field: str) -> int:
    product = _product(size, scale)
    if not 1 <= product <= LARGEST_INFERRED_SIZE:
        raise InvalidFieldError(
            field,
            f"is {shortest(scale)}, which scales src's {size} elements to {product:g}; "
            f"give a scale that results in 1 to 2**53",
            came=shortest(scale),
            size=size,
        )
    return int(product)


class OnednnAttributes(OnednnSizing, Protocol):
    """Attributes of both operators.

    mode                            one of nearest, linear, bilinear, trilinear; the last three are
                                    synonyms on any rank
    coordinate_transformation_mode  a key of TRANSFORMATIONS
    data_format                     either NXC or NCX
    """

    mode: str
    coordinate_transformation_mode: str
    data_format: str


@dataclass(frozen=True, slots=True)
class Transformation:
    """One way from dst indices to src coordinates.

    coordinates  (src, dst) -> float32[dst]
    exact_to     longest axis on which src == dst gives x == X: every product is then exact in
                 float32, and so is its quotient
    """

    coordinates: Callable[[int, int], Coordinates]
    exact_to: int


def _half_pixel(src: int, dst: int) -> Coordinates:
    x = np.arange(dst).astype(np.float32)
    return ((x + np.float32(0.5)) * np.float32(src)) / np.float32(dst) - np.float32(0.5)


def _align_corners(src: int, dst: int) -> Coordinates:
    x = np.arange(dst).astype(np.float32)
    return x if dst == 1 else x * np.float32(src - 1) / np.float32(dst - 1)


TRANSFORMATIONS: Final = {
    # (2 * X + 1) * src is at most 5791 * 2896, the largest such product below 2**24.
    "half_pixel": Transformation(_half_pixel, exact_to=2896),
    # X * (src - 1) is at most 4096 * 4096 = 2**24.
    "align_corners": Transformation(_align_corners, exact_to=4097),
}


def _nearest(transformation: Transformation, src: int, dst: int) -> Taps:
    """Read the element at roundf(x), half away from zero."""
    x = transformation.coordinates(src, dst)
    return sampling.nearest_taps(sampling.half_away(x), inputs=src, coordinates=x)


def _linear(transformation: Transformation, src: int, dst: int) -> Taps:
    """Weight the neighbors lo and hi of x by distance.

    lo = max(trunc(x), 0) has w0 = 1 - w1, and hi = min(ceil(x), src - 1) has w1 = |x - lo|.

    lo is held to the axis as well: beyond 2**23 elements x can round up to src, where oneDNN would
    read foreign memory.
    """
    x = transformation.coordinates(src, dst)
    low = np.maximum(np.trunc(x), 0)
    index = sampling.on_axis(np.array([low, np.ceil(x)]), inputs=src)
    return sampling.linear_taps(index, upper_weight=np.abs(x - low), coordinates=x)


def _spatial(attributes: OnednnAttributes, rank: int) -> range:
    """Return the spatial axes of a tensor.

    They are all but batch, the first, and channel.
    """
    return range(2, rank) if attributes.data_format == "NCX" else range(1, rank - 1)


def _axes(attributes: OnednnAttributes, call: OperatorCall) -> Axes:
    spatial = _spatial(attributes, len(call.source))
    check_batch_and_channel(call, spatial=spatial)
    if not call.gradient:
        require_sizes(attributes, call.operator)
    check_sizes(
        attributes,
        call.operator,
        src=tuple(call.source[axis] for axis in spatial),
        dst=tuple(call.result[axis] for axis in spatial),
    )
    transformation = TRANSFORMATIONS[attributes.coordinate_transformation_mode]
    sample, most_taps = (_nearest, 1) if attributes.mode == "nearest" else (_linear, 2)
    return tuple(
        None
        if axis not in spatial or src == dst <= transformation.exact_to
        else Axis(src, dst, most_taps, sample, (transformation, src, dst))
        for axis, (src, dst) in enumerate(zip(call.source, call.result, strict=True))
    )


def _output_shape(attributes: OnednnAttributes, input_shape: Shape) -> Shape:
    spatial = _spatial(attributes, len(input_shape))
    src = tuple(input_shape[axis] for axis in spatial)
    output_shape = list(input_shape)
    output_shape[spatial.start : spatial.stop] = inferred_sizes(attributes, "interpolate", src=src)
    return tuple(output_shape)


DIALECTS: Final = (
    Dialect("interpolate_backward", gradient=True, ranks=range(3, 6), axes=_axes),
    Dialect(
        "interpolate", gradient=False, ranks=range(3, 6), axes=_axes, output_shape=_output_shape
    ),
)
