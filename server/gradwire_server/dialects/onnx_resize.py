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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from gradwire_server.dialects import onnx_filters
from gradwire_server.dialects.dialect import Axes, Axis, Dialect, OperatorCall, Shape
from gradwire_server.dialects.onnx_filters import (
    CROP,
    WHOLE,
    OnnxAxis,
    antialiased,
    beyond_axis,
    most_taps,
)
from gradwire_server.errors import InvalidFieldError, counted, shortest
from gradwire_server.plans.sampling import ComputedTaps, Taps

# Beyond it int64(float) and float(int64) no longer name the same number.
LARGEST_INFERRED_SIZE: Final = 2**53

_PICK: Final = {"not_larger": min, "not_smaller": max}


class OnnxSizing(Protocol):
    """Attributes that determine lengths.

    An array has one value per axis, or per element of axes.

    axes                      resized axes, each from -rank to rank - 1; empty means all of them
    scales                    scales, output over input
    sizes                     lengths of the forward's output
    keep_aspect_ratio_policy  one of stretch, not_larger and not_smaller
    """

    axes: Sequence[int]
    scales: Sequence[float]
    sizes: Sequence[int]
    keep_aspect_ratio_policy: str


@dataclass(frozen=True, slots=True)
class Extent:
    """Output length and scale of one axis.

    outputs  its length in the forward's output
    scale    outputs over inputs, before outputs were cut to a whole number
    width    scale times inputs
    """

    outputs: int
    scale: np.floating[Any]
    width: np.floating[Any]


def named_axes(attributes: OnnxSizing, operator: str, *, rank: int) -> list[int]:
    """Return the resized axes, in the order of the arrays.

    Raises InvalidFieldError if they are invalid.
    """
    axes: list[int] = []
    for i, axis in enumerate(attributes.axes):
        if not -rank <= axis < rank:
            raise InvalidFieldError(
                f"operator.{operator}.axes[{i}]",
                f"is {axis}; tensors of {counted(rank, 'axis')} have {-rank} to {rank - 1}",
                came=axis,
                rank=rank,
            )
        if axis % rank in axes:
            raise InvalidFieldError(
                f"operator.{operator}.axes[{i}]",
                f"is {axis}, which is axis {axis % rank} again; name each once",
                came=axis,
            )
        axes.append(axis % rank)
    return axes or list(range(rank))


def extents(
    attributes: OnnxSizing,
    operator: str,
    source: Shape,
    *,
    kind: type[np.floating[Any]],
    result: Shape | None = None,
) -> dict[int, Extent]:
    """Return the extent of each axis that is resized; raise InvalidFieldError.

    result  the lengths that stand in for sizes where neither scales nor sizes are given
    """
    axes = named_axes(attributes, operator, rank=len(source))
    for field, values in (("scales", attributes.scales), ("sizes", attributes.sizes)):
        if len(values) not in {0, len(axes)}:
            raise InvalidFieldError(
                f"operator.{operator}.{field}",
                f"has {counted(len(values), 'value')} for {counted(len(axes), 'axis')}; give "
                f"{len(axes)}",
                came=len(values),
                expected=len(axes),
            )
    inputs, policy = [source[axis] for axis in axes], attributes.keep_aspect_ratio_policy
    if attributes.scales:
        made = _by_scales(attributes.scales, operator, inputs, kind=kind)
    elif attributes.sizes:
        made = _by_sizes(attributes.sizes, operator, inputs, policy=policy, kind=kind)
    elif result is None or policy != "stretch":
        raise InvalidFieldError(
            f"operator.{operator}.sizes", "is empty, and so is scales; give one of the two"
        )
    else:
        sizes = [result[axis] for axis in axes]
        made = _by_sizes(sizes, operator, inputs, policy=policy, kind=kind)
    return dict(zip(axes, made, strict=True))


def _by_scales(
    scales: Sequence[float], operator: str, inputs: Sequence[int], *, kind: type[np.floating[Any]]
) -> list[Extent]:
    made: list[Extent] = []
    for i, (each, length) in enumerate(zip(scales, inputs, strict=True)):
        scale = kind(each)
        width = _width(scale, length)
        if not 1 <= width <= LARGEST_INFERRED_SIZE:
            raise InvalidFieldError(
                f"operator.{operator}.scales[{i}]",
                f"is {shortest(each)}, which scales {length} elements to {width:g}; give a scale "
                f"that results in 1 to 2**53",
                came=shortest(each),
                size=length,
            )
        made.append(Extent(int(width), scale, width))
    return made


def _by_sizes(
    sizes: Sequence[int],
    operator: str,
    inputs: Sequence[int],
    *,
    policy: str,
    kind: type[np.floating[Any]],
) -> list[Extent]:
    scales = [kind(size) / kind(length) for size, length in zip(sizes, inputs, strict=True)]
    if policy == "stretch":
        # The width is a size, which scale * length may miss; ONNX Runtime takes the product.
        widths = [
            _width(scale, length) if kind is np.float32 else kind(size)
            for size, scale, length in zip(sizes, scales, inputs, strict=True)
        ]
        return [Extent(*each) for each in zip(sizes, scales, widths, strict=True)]
    scale = _PICK[policy](scales)
    made: list[Extent] = []
    for i, length in enumerate(inputs):
        width = _width(scale, length)
        whole = math.floor(width)
        outputs = whole + bool(width - whole >= 0.5)  # noqa: PLR2004
        if not 1 <= outputs <= LARGEST_INFERRED_SIZE:
            raise InvalidFieldError(
                f"operator.{operator}.sizes[{i}]",
                f"is {sizes[i]}; keep_aspect_ratio_policy {policy!r} scales {length} elements by "
                f"{scale:g} to {width:g}; give sizes that result in 0.5 to 2**53",
                came=sizes[i],
                size=length,
            )
        made.append(Extent(outputs, scale, width))
    return made


def _width(scale: np.floating[Any], length: int) -> Any:
    """Return scale * length in the type of scale.

    Infinite where it overflows.
    """
    with np.errstate(over="ignore"):
        return scale * type(scale)(length)


ARITHMETICS: Final[dict[str, type[np.floating[Any]]]] = {
    "spec_float64": np.float64,
    "float32": np.float32,
}


class OnnxAttributes(OnnxSizing, Protocol):
    """Attributes of both operators.

    mode                            one of nearest, linear and cubic
    coordinate_transformation_mode  a key of onnx_filters.TRANSFORMATIONS
    nearest_mode                    a key of onnx_filters.NEAREST_MODES
    cubic_coeff_a                   slope of the cubic kernel at distance 1
    exclude_outside                 whether elements beyond the edge weigh nothing
    antialias                       whether filters are stretched where an axis shrinks
    roi                             starts of all resized axes, then ends; empty means the whole of
                                    each axis
    extrapolation_value             value of forward elements that read outside
    arithmetic                      a key of ARITHMETICS
    """

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: bool
    antialias: bool
    roi: Sequence[float]
    extrapolation_value: float
    arithmetic: str


def _axes(attributes: OnnxAttributes, call: OperatorCall) -> Axes:
    lines = _lines(attributes, call)
    copies = attributes.arithmetic == "float32" and call.source == call.result
    return tuple(
        None if copies or line is None or _stays(line, attributes) else _axis(line, attributes)
        for line in lines
    )


def _stays(line: OnnxAxis, attributes: OnnxAttributes) -> bool:
    """Return whether an axis is left alone."""
    if line.inputs != line.outputs:
        return False
    if line.scale == 1 and (line.in_float32 or line.roi == WHOLE):
        return True
    # ONNX Runtime antialiases only where the length changes.
    return line.in_float32 and attributes.antialias and line.transformation != CROP


def _axis(line: OnnxAxis, attributes: OnnxAttributes) -> Axis:
    slope = line.kind(attributes.cubic_coeff_a) if attributes.mode == "cubic" else None
    filter_: tuple[int, Callable[..., Taps | ComputedTaps], tuple[Hashable, ...]]
    effort = 1
    if attributes.antialias and (line.scale < 1 or line.in_float32):
        radius = 1 if slope is None else 2
        filter_ = most_taps(line, radius), antialiased, (line, slope)
        effort += beyond_axis(line, radius)
    elif slope is not None:
        filter_ = 4, onnx_filters.cubic, (line, slope)
    elif attributes.mode == "linear":
        filter_ = 2, onnx_filters.linear, (line,)
    else:
        filter_ = 1, onnx_filters.nearest, (line, attributes.nearest_mode)
    taps, sample, arguments = filter_
    return Axis(
        line.inputs,
        line.outputs,
        taps,
        sample,
        arguments,
        in_float32=line.in_float32,
        effort=effort,
    )


def _lines(attributes: OnnxAttributes, call: OperatorCall) -> list[OnnxAxis | None]:
    """Check the sizes and return one OnnxAxis per axis.

    None stands for axes that are not resized.
    """
    made = extents(
        attributes,
        call.operator,
        call.source,
        kind=ARITHMETICS[attributes.arithmetic],
        # A gradient call has both shapes.
        result=call.result if call.gradient else None,
    )
    rois = _rois(attributes, call)
    lines: list[OnnxAxis | None] = []
    for axis, (inputs, came) in enumerate(zip(call.source, call.result, strict=True)):
        extent = made.get(axis)
        expected = inputs if extent is None else extent.outputs
        if came != expected:
            kept = extent is None
            resized = "is not resized" if kept else f"is resized from {inputs} to {expected}"
            raise InvalidFieldError(
                f"{call.result_sizes}[{axis}]",
                f"is {came}; this axis {resized}: give {expected}",
                came=came,
                expected=expected,
            )
        lines.append(
            None
            if extent is None
            else OnnxAxis(
                inputs,
                came,
                extent.scale,
                extent.width,
                attributes.coordinate_transformation_mode,
                rois[axis],
                exclude_outside=attributes.exclude_outside,
            )
        )
    return lines


def _rois(attributes: OnnxAttributes, call: OperatorCall) -> dict[int, tuple[float, float]]:
    """Return start and end of each resized axis.

    They span the whole axis, but for tf_crop_and_resize.
    """
    axes = named_axes(attributes, call.operator, rank=len(call.source))
    if len(attributes.roi) not in {0, 2 * len(axes)}:
        raise InvalidFieldError(
            call.attribute("roi"),
            f"has {counted(len(attributes.roi), 'value')} for {counted(len(axes), 'axis')}; give "
            f"{2 * len(axes)}, all starts before all ends, or none",
            came=len(attributes.roi),
            expected=2 * len(axes),
        )
    if not attributes.roi or attributes.coordinate_transformation_mode != CROP:
        return dict.fromkeys(axes, WHOLE)
    pairs = zip(attributes.roi[: len(axes)], attributes.roi[len(axes) :], strict=True)
    return dict(zip(axes, pairs, strict=True))


def _output_shape(attributes: OnnxAttributes, input_shape: Shape) -> Shape:
    made = extents(attributes, "onnx_resize", input_shape, kind=ARITHMETICS[attributes.arithmetic])
    return tuple(
        made[axis].outputs if axis in made else size for axis, size in enumerate(input_shape)
    )


def _fill(attributes: OnnxAttributes) -> float:
    crops = attributes.coordinate_transformation_mode == CROP
    return attributes.extrapolation_value if crops else 0.0


DIALECTS: Final = (
    Dialect("onnx_resize_grad", gradient=True, ranks=range(1, 9), axes=_axes, fill=_fill),
    Dialect(
        "onnx_resize",
        gradient=False,
        ranks=range(1, 9),
        axes=_axes,
        output_shape=_output_shape,
        fill=_fill,
    ),
)
