"""OpenVINO interpolation: openvino_interpolate, the operation Interpolate-11, and its gradient.

Attributes and inputs are the operation's own; openvino_filters.py has the weights along an axis, as
OpenVINO's reference implementation computes them. OpenVINO has no gradient of it: this one is the
adjoint of that forward.

Source: https://docs.openvino.ai, Interpolate-11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_server.dialects import openvino_filters as filters
from gradwire_server.dialects.dialect import (
    Attributes,
    Axes,
    Axis,
    OperatorCall,
    Shape,
    both,
    check_count,
    check_result,
    scaled_size,
)
from gradwire_server.dialects.openvino_filters import OpenvinoAxis
from gradwire_server.errors import InvalidFieldError, counted, shortest

# Added to a scale before a length is multiplied by it and cut: `ov::util::dim::scale`.
SCALE_EPSILON: Final = np.float32(1e-6)

# Ranks whose axes linear_onnx resamples all; of more it leaves batch and channel.
ALL_AXES: Final = {2, 3}
PILLOW_AXES: Final = 2


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    numbers = _numbers(attributes, rank=len(call.source))
    told = _inferred(attributes, call.source)
    for axis, length in told.items():
        by = attributes.shape_calculation_mode if axis in numbers else "padding"
        check_result(call, {axis: length}, by=by)
    scales = _scales(attributes, call, numbers)
    shrinks = any(scale < 1 for scale in scales.values())
    pads = _pads(attributes, rank=len(call.source))
    lines = [
        OpenvinoAxis(
            inputs,
            outputs,
            pads=pads[axis],
            scale=scales.get(axis, 1.0),
            transformation=attributes.coordinate_transformation_mode,
            rounding=attributes.nearest_mode,
            stretch=scales.get(axis, 1.0) if attributes.antialias and shrinks else 1.0,
            cube_coeff=attributes.cube_coeff,
        )
        for axis, (inputs, outputs) in enumerate(zip(call.source, call.result, strict=True))
    ]
    return tuple(
        _axis(attributes.mode if axis in scales else "", line) for axis, line in enumerate(lines)
    )


def _axis(mode: str, line: OpenvinoAxis) -> Axis | None:
    """Return a resampled axis, or a padded one without a mode."""
    sides = line.inputs, line.outputs
    exact = mode == "cubic" or (mode == "linear" and line.stretch != 1)
    if line.length == line.outputs and not exact:
        return None if line.length == line.inputs else Axis(*sides, 1, filters.padding, (line,))
    taps, extra = filters.MOST_TAPS.get(mode, 0), 0
    if not taps:
        window = filters.WINDOWS[mode](line)
        taps = min(window, line.inputs)
        # With padding, a window is weighed once more for its sum.
        extra = 0 if line.length == line.inputs else window
    return Axis(
        *sides,
        taps,
        filters.SAMPLES[mode],
        (line,),
        in_float32=mode not in filters.PILLOW,
        padded=line.length,
        window=extra,
        effort=filters.PILLOW.get(mode, 1),  # Keys's kernel takes twice as long as the triangle
    )


def _numbers(attributes: Attributes, *, rank: int) -> tuple[int, ...]:
    """Return the resampled axes, in the order of sizes and scales."""
    numbers = tuple(attributes.axes) or tuple(range(rank))
    for i, number in enumerate(numbers):
        if number >= rank or number in numbers[:i]:
            raise InvalidFieldError(
                attributes.path(f"axes[{i}]"),
                f"is {number}; a tensor of {counted(rank, 'axis')} takes different axes from 0 to "
                f"{rank - 1}",
                came=number,
            )
    expected = set(range(0 if rank in ALL_AXES else 2, rank))
    every = len(numbers) == rank > 1
    onnx = attributes.mode == "linear_onnx" and set(numbers) != expected and not every
    pillow = attributes.mode in filters.PILLOW and len(numbers) != PILLOW_AXES
    if onnx or pillow:
        wanted = "two axes" if pillow else ", ".join(map(str, sorted(expected))) or "no rank 1"
        raise InvalidFieldError(
            attributes.path("axes"),
            f"is {list(numbers)}; mode {attributes.mode!r} takes {wanted} of {rank}",
            came=list(numbers),
        )
    return numbers


def _pads(attributes: Attributes, *, rank: int) -> list[tuple[int, int]]:
    """Return the padding of every axis; the default is 0."""
    for field in ("pads_begin", "pads_end"):
        check_count(attributes, field, rank, other=range(rank), wanted="at most {}")
    begin, end = (list(each) + [0] * rank for each in (attributes.pads_begin, attributes.pads_end))
    return list(zip(begin[:rank], end, strict=False))


def _inferred(attributes: Attributes, source: Shape) -> dict[int, int]:
    """Return the lengths of the result that attributes tell, by axis.

    Sizes are taken as they are; a scale gives int(length * (scale + 1e-6)) in float32. Axes that
    are not resampled keep their padded length.
    """
    rank = len(source)
    numbers = _numbers(attributes, rank=rank)
    padded = [
        sum(pads, size) for pads, size in zip(_pads(attributes, rank=rank), source, strict=True)
    ]
    told = {axis: size for axis, size in enumerate(padded) if axis not in numbers}
    field = attributes.shape_calculation_mode
    values = attributes.sizes if field == "sizes" else attributes.scales
    if not values and field == "sizes":
        return told
    check_count(attributes, field, len(numbers), other=(), wanted="{}")
    if field == "sizes":
        return told | dict(zip(numbers, attributes.sizes, strict=True))
    for i, (axis, scale) in enumerate(zip(numbers, attributes.scales, strict=True)):
        with np.errstate(over="ignore"):
            product = float(np.float32(padded[axis]) * (np.float32(scale) + SCALE_EPSILON))
        told[axis] = scaled_size(
            product,
            field=attributes.path(f"{field}[{i}]"),
            scale=shortest(scale),
            size=padded[axis],
        )
    return told


def _scales(attributes: Attributes, call: OperatorCall, numbers: Sequence[int]) -> dict[int, float]:
    """Return the scale of each resampled axis.

    It is the given one, or the ratio of the lengths in float32.
    """
    if attributes.shape_calculation_mode == "scales":
        return dict(zip(numbers, map(float, attributes.scales), strict=True))
    pads = _pads(attributes, rank=len(call.source))
    return {
        axis: float(np.float32(call.result[axis]) / np.float32(sum(pads[axis], call.source[axis])))
        for axis in numbers
    }


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    told = _inferred(attributes, input_shape)
    if len(told) != len(input_shape):
        raise InvalidFieldError(
            attributes.path("sizes"), "is empty; give the sizes, or the output's sizes"
        )
    return tuple(told[axis] for axis in range(len(input_shape)))


DIALECTS: Final = both(
    "openvino_interpolate_grad",
    "openvino_interpolate",
    ranks=range(1, 9),
    axes=_axes,
    output_shape=_output_shape,
)
