"""ONNX Resize, opset 10 to 19: onnx_resize and onnx_resize_grad.

The formulas of the specification, in float64 or, with arithmetic float32, in the float32 of ONNX
Runtime, whose other choices come with it: where the shape stays it copies the tensor, and it leaves
an axis alone whose scale is 1. By the specification too an axis is left alone whose scale is 1 and
of which the roi is all.

ONNX declares Resize differentiable but has no operator for its gradient: onnx_resize_grad is the
adjoint. extrapolation_value is no part of it.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html; what it leaves open is taken from
onnx/reference/ops/op_resize.py, for float32 from ONNX Runtime's
core/providers/cpu/tensor/upsample.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from gradwire_server.dialects import onnx_filters
from gradwire_server.dialects.dialect import Axes, Axis, Call, Dialect, Shape
from gradwire_server.dialects.onnx_antialias import antialiased, beyond_axis, most_taps
from gradwire_server.dialects.onnx_coordinates import CROP, WHOLE, Line
from gradwire_server.dialects.onnx_filters import Keys
from gradwire_server.dialects.onnx_sizes import Sizing, extents, named_axes
from gradwire_server.errors import InvalidFieldError
from gradwire_server.plans.sampling import ComputedTaps, Taps
from gradwire_server.text import counted

ARITHMETICS: Final[dict[str, type[np.floating[Any]]]] = {
    "spec_float64": np.float64,
    "float32": np.float32,
}


class Resize(Sizing, Protocol):
    """Attributes of both operators."""

    @property
    def mode(self) -> str:
        """One of nearest, linear and cubic."""
        ...

    @property
    def coordinate_transformation_mode(self) -> str:
        """A key of onnx_lines.TRANSFORMATIONS."""
        ...

    @property
    def nearest_mode(self) -> str:
        """A key of onnx_filters.NEAREST_MODES."""
        ...

    @property
    def cubic_coeff_a(self) -> float:
        """Slope of the cubic kernel at distance 1."""
        ...

    @property
    def exclude_outside(self) -> bool:
        """Whether elements beyond the edge weigh nothing."""
        ...

    @property
    def antialias(self) -> bool:
        """Whether filters are stretched where an axis shrinks."""
        ...

    @property
    def roi(self) -> Sequence[float]:
        """Starts of all axes that are resized, then ends; empty means all of each."""
        ...

    @property
    def extrapolation_value(self) -> float:
        """What an element of the forward is that reads outside."""
        ...

    @property
    def arithmetic(self) -> str:
        """A key of ARITHMETICS."""
        ...


def _axes(attributes: Resize, call: Call) -> Axes:
    lines = _lines(attributes, call)
    copies = attributes.arithmetic == "float32" and call.source == call.result
    return tuple(
        None if copies or line is None or _stays(line, attributes) else _axis(line, attributes)
        for line in lines
    )


def _stays(line: Line, attributes: Resize) -> bool:
    """Tell whether an axis is left alone."""
    if line.inputs != line.outputs:
        return False
    if line.scale == 1 and (line.in_float32 or line.roi == WHOLE):
        return True
    # ONNX Runtime antialiases only where the length changes.
    return line.in_float32 and attributes.antialias and line.transformation != CROP


def _axis(line: Line, attributes: Resize) -> Axis:
    keys = Keys(line.kind(attributes.cubic_coeff_a)) if attributes.mode == "cubic" else None
    filter_: tuple[int, Callable[..., Taps | ComputedTaps], tuple[Hashable, ...]]
    effort = 1
    if attributes.antialias and (line.scale < 1 or line.in_float32):
        radius = 1 if keys is None else 2
        filter_ = most_taps(line, radius), antialiased, (line, keys)
        effort += beyond_axis(line, radius)
    elif keys is not None:
        filter_ = 4, onnx_filters.cubic, (line, keys)
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


def _lines(attributes: Resize, call: Call) -> list[Line | None]:
    """Check the sizes and return one Line per axis, None for those that are not resized."""
    made = extents(
        attributes,
        call.operator,
        call.source,
        kind=ARITHMETICS[attributes.arithmetic],
        # A gradient is told both shapes.
        result=call.result if call.gradient else None,
    )
    rois = _rois(attributes, call)
    lines: list[Line | None] = []
    for axis, (inputs, came) in enumerate(zip(call.source, call.result, strict=True)):
        extent = made.get(axis)
        expected = inputs if extent is None else extent.outputs
        if came != expected:
            raise InvalidFieldError(
                f"{call.result_sizes}[{axis}]",
                f"is {came}; {call.operator} makes {expected} of the {inputs} elements there",
                came=came,
                expected=expected,
            )
        lines.append(
            None
            if extent is None
            else Line(
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


def _rois(attributes: Resize, call: Call) -> dict[int, tuple[float, float]]:
    """Return start and end of each axis that is resized; all of it, but for tf_crop_and_resize."""
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


def _output_shape(attributes: Resize, input_shape: Shape) -> Shape:
    made = extents(attributes, "onnx_resize", input_shape, kind=ARITHMETICS[attributes.arithmetic])
    return tuple(
        made[axis].outputs if axis in made else size for axis, size in enumerate(input_shape)
    )


def _fill(attributes: Resize) -> float:
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
