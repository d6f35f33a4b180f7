"""PyTorch interpolation: torch_interpolate and torch_upsample_backward.

The arguments are those of `torch.nn.functional.interpolate`, checked as there; torch_filters.py has
the weights along an axis. PyTorch has two tables for one operator, since its backward is not always
the adjoint of its forward: `follow` says which one a gradient transposes. In both, an axis whose
length stays is left alone in the modes that PyTorch treats so.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

from gradwire_server.dialects.dialect import (
    Attributes,
    Axes,
    OperatorCall,
    Shape,
    both,
    check_batch_and_channel,
    check_count,
    check_result,
    scaled_sizes,
)
from gradwire_server.dialects.torch_filters import ANTIALIAS, BACKWARD, FORWARD, Filter, TorchAxis
from gradwire_server.errors import InvalidFieldError

# `_use_vectorized_kernel_cond_2d`: up to this sum of rows and columns, the nearest forward of
# 2 spatial axes reads as the backward does. Source: ATen/native/cpu/UpSampleKernel.cpp.
SMALL_OUTPUT: Final = 128

# Spatial axes that a mode takes; the others take any number.
SPATIAL_AXES: Final = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "lanczos": 2}


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    """Return the axes of PyTorch's forward or backward.

    For a backward, they are those of the forward whose adjoint it is.
    """
    by_backward = call.gradient and attributes.follow == "backward_op"
    if not call.gradient:
        _require_size(attributes)
    _check_rank(attributes, call)
    check_batch_and_channel(call, spatial=range(2, len(call.source)))
    lines = _lines(attributes, call)
    if attributes.antialias:
        rule, skips = ANTIALIAS[attributes.mode], not by_backward
    else:
        rule = _filter(attributes.mode, lines, by_backward=by_backward)
        skips = rule.skips
    copies = by_backward and rule is BACKWARD["bicubic"] and all(line.stays for line in lines)
    return (
        None,
        None,
        *(None if copies or (skips and line.stays) else rule.axis(line) for line in lines),
    )


def _filter(mode: str, lines: Sequence[TorchAxis], *, by_backward: bool) -> Filter:
    small = len(lines) == 2 and sum(line.outputs for line in lines) <= SMALL_OUTPUT  # noqa: PLR2004
    as_backward = by_backward or (small and mode in {"nearest", "nearest-exact"})
    return (BACKWARD if as_backward else FORWARD)[mode]


def _lines(attributes: Attributes, call: OperatorCall) -> list[TorchAxis]:
    """Check the sizes and return one TorchAxis per spatial axis."""
    source, result = call.source[2:], call.result[2:]
    scales = _per_axis(attributes, "scale_factor", spatial=len(source))
    by = "scale_factor" if scales else "size"
    check_result(call, dict(enumerate(_sizes(attributes, source), 2)), by=by)
    ignored = not scales or attributes.recompute_scale_factor or attributes.align_corners
    return [
        TorchAxis(
            inputs,
            outputs,
            scale_factor=None if ignored else scales[i],
            align_corners=bool(attributes.align_corners),
            compute=call.compute,
        )
        for i, (inputs, outputs) in enumerate(zip(source, result, strict=True))
    ]


def _per_axis(attributes: Attributes, field: str, *, spatial: int) -> list[Any]:
    """Return an attribute's values, one per spatial axis or none."""
    values = getattr(attributes, field)
    wanted = "{}, one for all, or none"
    check_count(attributes, field, spatial, noun="spatial axis", other=(0, 1), wanted=wanted)
    return list(values) * spatial if len(values) == 1 else list(values)


def _sizes(attributes: Attributes, source: Shape) -> Shape:
    """Return the spatial sizes that attributes determine, if any.

    They are size, or trunc(input * scale_factor) of each axis, in float64.
    """
    size = _per_axis(attributes, "size", spatial=len(source))
    scales = _per_axis(attributes, "scale_factor", spatial=len(source))
    return tuple(size) or scaled_sizes(
        attributes, "scale_factor", source, scales, operator.mul, text=str
    )


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    _require_size(attributes)
    return (*input_shape[:2], *_sizes(attributes, input_shape[2:]))


def _require_size(attributes: Attributes) -> None:
    if not attributes.size and not attributes.scale_factor:
        raise InvalidFieldError(
            attributes.path("size"), "is empty, and so is scale_factor; give one of the two"
        )


def _check_rank(attributes: Attributes, call: OperatorCall) -> None:
    spatial = len(call.source) - 2
    expected = SPATIAL_AXES.get(attributes.mode, spatial)
    if spatial != expected:
        raise InvalidFieldError(
            attributes.path("mode"),
            f"is {attributes.mode!r}, which takes tensors of {expected + 2} axes; this tensor has "
            f"{spatial + 2}: batch, channel and {spatial} spatial",
            mode=attributes.mode,
            came=spatial + 2,
            expected=expected + 2,
        )


DIALECTS: Final = both(
    "torch_upsample_backward",
    "torch_interpolate",
    ranks=range(3, 6),
    axes=_axes,
    output_shape=_output_shape,
)
