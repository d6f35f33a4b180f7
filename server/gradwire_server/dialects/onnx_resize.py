"""ONNX Resize, opset 10 to 19: onnx_resize and onnx_resize_grad.

The formulas of the specification, in float64 or, with arithmetic float32, in the float32 of ONNX
Runtime, with ONNX Runtime's other choices: it copies the tensor if its shape stays, and leaves
every axis of scale 1 alone. The specification leaves an axis alone if its scale is 1 and its roi is
the whole axis.

ONNX declares Resize differentiable but has no operator for its gradient: onnx_resize_grad is the
adjoint. extrapolation_value is no part of it.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html. Details that it leaves open follow
onnx/reference/ops/op_resize.py, or for float32 ONNX Runtime's
core/providers/cpu/tensor/upsample.cc.

Output lengths and scales of each axis:

    scales      length = floor(scale * input)
    sizes       length = size, scale = size / input; where an aspect ratio is kept, scale is the
                least or greatest of these, and length = round(scale * input), halves upward

in the type of the arithmetic. The published text has floor(input * (roi_end - roi_start) * scale);
like ONNX's own shape inference, its reference implementation and ONNX Runtime, this leaves the roi
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from gradwire_server.dialects import onnx_filters
from gradwire_server.dialects.dialect import (
    Attributes,
    Axes,
    Axis,
    OperatorCall,
    Shape,
    both,
    check_count,
    check_result,
    scaled_sizes,
)
from gradwire_server.dialects.onnx_filters import CROP, WHOLE, OnnxAxis
from gradwire_server.errors import InvalidFieldError, counted
from gradwire_server.plans.sampling import Number

_PICK: Final = {"not_larger": min, "not_smaller": max}


# Output length and scale of an axis, and the length before it was cut: scale times inputs.
Extent = tuple[int, Number, Number]


def _named_axes(attributes: Attributes, *, rank: int) -> list[int]:
    """Return the resized axes, in the order of the arrays.

    Raises InvalidFieldError if they are invalid.
    """
    axes: list[int] = []
    for i, axis in enumerate(attributes.axes):
        if not -rank <= axis < rank:
            raise InvalidFieldError(
                attributes.path(f"axes[{i}]"),
                f"is {axis}; tensors of {counted(rank, 'axis')} have {-rank} to {rank - 1}",
                came=axis,
                rank=rank,
            )
        if axis % rank in axes:
            raise InvalidFieldError(
                attributes.path(f"axes[{i}]"),
                f"is {axis}, which is axis {axis % rank} again; name each once",
                came=axis,
            )
        axes.append(axis % rank)
    return axes or list(range(rank))


def _lines(
    attributes: Attributes, source: Shape, *, result: Shape | None = None
) -> dict[int, OnnxAxis]:
    """Return each axis that is resized; raise InvalidFieldError.

    result  the lengths that stand in for sizes where neither scales nor sizes are given
    """
    kind = ARITHMETICS[attributes.arithmetic]
    axes = _named_axes(attributes, rank=len(source))
    for field in ("scales", "sizes"):
        check_count(attributes, field, len(axes), wanted="{}")
    inputs, sizes = [source[axis] for axis in axes], attributes.sizes
    if not sizes and not attributes.scales:
        if result is None or attributes.keep_aspect_ratio_policy != "stretch":
            raise InvalidFieldError(
                attributes.path("sizes"), "is empty, and so is scales; give one of the two"
            )
        sizes = [result[axis] for axis in axes]
    extents = (
        _by_sizes(attributes, sizes, inputs, kind)
        if sizes
        else _by_scales(attributes, inputs, kind)
    )
    return {
        axis: OnnxAxis(
            source[axis],
            *extent,
            attributes.coordinate_transformation_mode,
            roi,
            attributes.nearest_mode,
            exclude_outside=attributes.exclude_outside,
            slope=kind(attributes.cubic_coeff_a) if attributes.mode == "cubic" else None,
        )
        for axis, extent, roi in zip(axes, extents, _rois(attributes, len(axes)), strict=True)
    }


def _rois(attributes: Attributes, axes: int) -> Iterable[tuple[float, float]]:
    """Return start and end of what is read of each resized axis.

    They span the whole axis, but for tf_crop_and_resize.
    """
    wanted = "{}, all starts before all ends, or none"
    check_count(attributes, "roi", 2 * axes, noun="bound", wanted=wanted)
    if not attributes.roi or attributes.coordinate_transformation_mode != CROP:
        return [WHOLE] * axes
    return zip(attributes.roi[:axes], attributes.roi[axes:], strict=True)


def _by_scales(attributes: Attributes, inputs: Sequence[int], kind: type[Number]) -> list[Extent]:
    def width(length: int, scale: float) -> Any:
        return _width(kind(scale), length)

    scales = attributes.scales
    outputs = scaled_sizes(attributes, "scales", inputs, scales, width)
    return list(zip(outputs, map(kind, scales), map(width, inputs, scales), strict=True))


def _by_sizes(
    attributes: Attributes, sizes: Sequence[int], inputs: Sequence[int], kind: type[Number]
) -> list[Extent]:
    policy = attributes.keep_aspect_ratio_policy
    scales = [kind(size) / kind(length) for size, length in zip(sizes, inputs, strict=True)]
    if policy == "stretch":
        # The width is a size, which scale * length may miss; ONNX Runtime takes the product.
        widths = [
            _width(scale, length) if kind is np.float32 else kind(size)
            for size, scale, length in zip(sizes, scales, inputs, strict=True)
        ]
        return list(zip(sizes, scales, widths, strict=True))
    scale = _PICK[policy](scales)
    made: list[Extent] = []
    for i, length in enumerate(inputs):
        width = _width(scale, length)
        whole = math.floor(width)
        outputs = whole + bool(width - whole >= 0.5)  # noqa: PLR2004
        if not 1 <= outputs <= 2**53:
            raise InvalidFieldError(
                attributes.path(f"sizes[{i}]"),
                f"is {sizes[i]}; keep_aspect_ratio_policy {policy!r} scales {length} elements by "
                f"{scale:g} to {width:g}; give sizes that result in 0.5 to 2**53",
                came=sizes[i],
                size=length,
            )
        made.append((outputs, scale, width))
    return made


def _width(scale: Number, length: int) -> Any:
    """Return scale * length in the type of scale.

    Infinite where it overflows.
    """
    with np.errstate(over="ignore"):
        return scale * type(scale)(length)


ARITHMETICS: Final[dict[str, type[Number]]] = {
    "spec_float64": np.float64,
    "float32": np.float32,
}


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    # A gradient call has both shapes.
    lines = _lines(attributes, call.source, result=call.result if call.gradient else None)
    kept = {axis: size for axis, size in enumerate(call.source) if axis not in lines}
    check_result(call, kept)
    resized = {axis: line.outputs for axis, line in lines.items()}
    check_result(call, resized, by="scales" if attributes.scales else "sizes")
    copies = attributes.arithmetic == "float32" and call.source == call.result
    return tuple(
        None if copies or line is None or _stays(line, attributes) else _axis(line, attributes)
        for line in map(lines.get, range(len(call.source)))
    )


def _stays(line: OnnxAxis, attributes: Attributes) -> bool:
    """Return whether an axis is left alone."""
    if line.inputs != line.outputs:
        return False
    if line.scale == 1 and (line.in_float32 or line.roi == WHOLE):
        return True
    # ONNX Runtime antialiases only where the length changes.
    return line.in_float32 and attributes.antialias and line.transformation != CROP


def _axis(line: OnnxAxis, attributes: Attributes) -> Axis:
    sample, taps = onnx_filters.SAMPLES[attributes.mode]
    effort = 1
    if attributes.antialias and (line.scale < 1 or line.in_float32):
        sample, taps = onnx_filters.antialiased, min(line.window, line.inputs)
        # Elements beyond the edges are weighed, but not read.
        effort += math.ceil(line.window / taps)
    sides = line.inputs, line.outputs
    return Axis(*sides, taps, sample, (line,), line.in_float32, effort=effort)


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    resized = {axis: line.outputs for axis, line in _lines(attributes, input_shape).items()}
    return tuple(resized.get(axis, size) for axis, size in enumerate(input_shape))


def _fill(attributes: Attributes) -> float:
    crops = attributes.coordinate_transformation_mode == CROP
    return attributes.extrapolation_value if crops else 0.0


DIALECTS: Final = both(
    "onnx_resize_grad",
    "onnx_resize",
    ranks=range(1, 9),
    axes=_axes,
    output_shape=_output_shape,
    fill=_fill,
)
