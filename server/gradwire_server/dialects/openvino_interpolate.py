"""OpenVINO interpolation: openvino_interpolate, the operation Interpolate-11, and its gradient.

Attributes and inputs are the operation's own; openvino_filters.py has the weights along an axis, as
OpenVINO's reference implementation computes them. OpenVINO has no gradient of it: this one is the
adjoint of that forward.

Source: https://docs.openvino.ai, Interpolate-11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    scaled_sizes,
)
from gradwire_server.dialects.openvino_filters import OpenvinoAxis
from gradwire_server.errors import InvalidFieldError, counted

# Added to a scale before a length is multiplied by it and cut: `ov::util::dim::scale`.
SCALE_EPSILON: Final = np.float32(1e-6)

# Ranks whose axes linear_onnx resamples all; of more it leaves batch and channel.
ALL_AXES: Final = {2, 3}
PILLOW_AXES: Final = 2


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    rank = len(call.source)
    numbers, pads = _numbers(attributes, rank=rank), _pads(attributes, rank=rank)
    padded = [sum(each, size) for each, size in zip(pads, call.source, strict=True)]
    for axis, length in _inferred(attributes, numbers, padded).items():
        by = attributes.shape_calculation_mode if axis in numbers else "padding"
        check_result(call, {axis: length}, by=by)
    if attributes.shape_calculation_mode == "scales":
        scales = dict(zip(numbers, map(float, attributes.scales), strict=True))
    else:
        ratios = np.array(call.result, np.float32) / np.array(padded, np.float32)
        scales = {axis: float(ratios[axis]) for axis in numbers}
    shrinks = attributes.antialias and any(scale < 1 for scale in scales.values())
    return tuple(
        _axis(
            OpenvinoAxis(
                inputs,
                outputs,
                pads=pads[axis],
                mode=attributes.mode if axis in scales else "",
                scale=scales.get(axis, 1.0),
                transformation=attributes.coordinate_transformation_mode,
                rounding=attributes.nearest_mode,
                stretch=scales.get(axis, 1.0) if shrinks else 1.0,
                cube_coeff=attributes.cube_coeff,
            )
        )
        for axis, (inputs, outputs) in enumerate(zip(call.source, call.result, strict=True))
    )


def _axis(line: OpenvinoAxis) -> Axis | None:
    """Return an axis that is resampled or padded; None for any other."""
    exact = line.mode == "cubic" or (line.mode == "linear" and line.stretch != 1)
    if line.length == line.outputs and not exact:
        if line.length == line.inputs:
            return None
        line = replace(line, mode="")
    windowed = line.mode not in filters.MOST_TAPS
    return Axis(
        line.inputs,
        line.outputs,
        min(line.window, line.inputs) if windowed else filters.MOST_TAPS[line.mode],
        filters.SAMPLES[line.mode],
        (line,),
        in_float32=line.mode not in filters.PILLOW,
        padded=line.length,
        # With padding, a window is weighed once more for its sum.
        window=line.window if windowed and line.length != line.inputs else 0,
        effort=filters.PILLOW.get(
            line.mode, 1
        ),  # Keys's kernel takes twice as long as the triangle
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


def _inferred(
    attributes: Attributes, numbers: Sequence[int], padded: Sequence[int]
) -> dict[int, int]:
    """Return the lengths of the result that attributes tell, by axis.

    Sizes are taken as they are; a scale gives int(length * (scale + 1e-6)) in float32. Axes that
    are not resampled keep their padded length.
    """
    told = {axis: size for axis, size in enumerate(padded) if axis not in numbers}
    field = attributes.shape_calculation_mode
    if field == "sizes" and not attributes.sizes:
        return told
    check_count(attributes, field, len(numbers), other=(), wanted="{}")
    sizes = attributes.sizes
    if field == "scales":
        lengths = [padded[axis] for axis in numbers]
        sizes = scaled_sizes(attributes, field, lengths, attributes.scales, _scaled)
    return told | dict(zip(numbers, sizes, strict=True))


def _scaled(length: int, scale: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(length) * (np.float32(scale) + SCALE_EPSILON))


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    rank = len(input_shape)
    pads = _pads(attributes, rank=rank)
    padded = [sum(each, size) for each, size in zip(pads, input_shape, strict=True)]
    told = _inferred(attributes, _numbers(attributes, rank=rank), padded)
    if len(told) != rank:
        raise InvalidFieldError(
            attributes.path("sizes"), "is empty; give the sizes, or the output's sizes"
        )
    return tuple(told[axis] for axis in range(rank))


DIALECTS: Final = both(
    "openvino_interpolate_grad",
    "openvino_interpolate",
    ranks=range(1, 9),
    axes=_axes,
    output_shape=_output_shape,
)
