"""PyTorch interpolation: torch_interpolate and torch_upsample_backward.

The arguments are those of `torch.nn.functional.interpolate`, checked as there; torch_filters.py has
the weights along an axis. PyTorch has two tables for one operator, since its backward is not always
the adjoint of its forward: `follow` says which one a gradient transposes. In both, an axis whose
length stays is left alone in the modes that PyTorch treats so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from gradwire_server.dialects.dialect import (
    Axes,
    Dialect,
    OperatorCall,
    Shape,
    check_batch_and_channel,
)
from gradwire_server.dialects.torch_filters import ANTIALIAS, BACKWARD, FORWARD, Filter, TorchAxis
from gradwire_server.errors import InvalidFieldError, counted

T = TypeVar("T")

# Beyond it int64(float) and float(int64) no longer name the same number.
LARGEST_INFERRED_SIZE: Final = 2**53

# `_use_vectorized_kernel_cond_2d`: up to this sum of rows and columns, the nearest forward of
# 2 spatial axes reads as the backward does. Source: ATen/native/cpu/UpSampleKernel.cpp.
SMALL_OUTPUT: Final = 128

# Spatial axes that a mode takes; the others take any number.
SPATIAL_AXES: Final = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "lanczos": 2}


class TorchAttributes(Protocol):
    """Attributes of both operators.

    size                    spatial sizes of the forward's output: none, one for all or one per
                            spatial axis
    scale_factor            spatial scales, output over input: none, one for all or one per spatial
                            axis
    mode                    one of nearest, nearest-exact, linear, bilinear, trilinear, bicubic,
                            area, lanczos
    align_corners           whether corners correspond
    recompute_scale_factor  whether scale_factor tells the sizes only
    antialias               whether the filter is stretched where an axis shrinks
    """

    size: Sequence[int]
    scale_factor: Sequence[float]
    mode: str
    align_corners: bool | None
    recompute_scale_factor: bool | None
    antialias: bool


class Followed(TorchAttributes, Protocol):
    """Additional attribute of torch_upsample_backward.

    follow  either backward_op or forward_adjoint
    """

    follow: str


def _forward_axes(attributes: TorchAttributes, call: OperatorCall) -> Axes:
    _require_size(attributes, call.operator)
    return _axes(attributes, call, by_backward=False)


def _gradient_axes(attributes: Followed, call: OperatorCall) -> Axes:
    return _axes(attributes, call, by_backward=attributes.follow == "backward_op")


def _axes(attributes: TorchAttributes, call: OperatorCall, *, by_backward: bool) -> Axes:
    """Return the axes of PyTorch's forward or backward.

    For a backward, they are those of the forward whose adjoint it is.
    """
    _check_rank(attributes, call)
    check_batch_and_channel(call, spatial=range(2, len(call.source)))
    lines = _lines(attributes, call)
    rule = _filter(attributes.mode, lines, antialias=attributes.antialias, by_backward=by_backward)
    copies = by_backward and rule is BACKWARD["bicubic"] and all(line.stays for line in lines)
    return (
        None,
        None,
        *(None if copies or (rule.skips and line.stays) else rule.axis(line) for line in lines),
    )


def _filter(mode: str, lines: Sequence[TorchAxis], *, antialias: bool, by_backward: bool) -> Filter:
    if antialias:
        return ANTIALIAS[mode] if by_backward else ANTIALIAS[mode].skipping()
    rows_and_columns = sum(line.outputs for line in lines) if len(lines) == 2 else None  # noqa: PLR2004
    small = rows_and_columns is not None and rows_and_columns <= SMALL_OUTPUT
    as_backward = by_backward or (small and mode in {"nearest", "nearest-exact"})
    return (BACKWARD if as_backward else FORWARD)[mode]


def _lines(attributes: TorchAttributes, call: OperatorCall) -> list[TorchAxis]:
    """Check the sizes and return one TorchAxis per spatial axis."""
    source, result = call.source[2:], call.result[2:]
    size = _per_axis(attributes.size, "size", call.operator, spatial=len(source))
    scales = _per_axis(attributes.scale_factor, "scale_factor", call.operator, spatial=len(source))
    inferred = size or _scaled(source, scales, call.operator)
    for i, (expected, came) in enumerate(zip(inferred, result, strict=False)):
        if expected != came:
            given = f"scale_factor {scales[i]}" if scales else "size"
            raise InvalidFieldError(
                f"{call.result_sizes}[{i + 2}]",
                f"is {came}; {given} resizes this axis from {source[i]} to {expected}",
                came=came,
                expected=expected,
            )
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


def _per_axis(values: Sequence[T], field: str, operator: str, *, spatial: int) -> Sequence[T]:
    """Return one value per spatial axis, or none where none is given."""
    if len(values) not in {0, 1, spatial}:
        raise InvalidFieldError(
            f"operator.{operator}.{field}",
            f"has {counted(len(values), 'value')} for tensors of {spatial + 2} axes, {spatial} of "
            f"them spatial; give {spatial}, one for all, or none",
            came=len(values),
            expected=spatial,
        )
    return list(values) * spatial if len(values) == 1 else values


def _output_shape(attributes: TorchAttributes, input_shape: Shape) -> Shape:
    operator, source = "torch_interpolate", input_shape[2:]
    _require_size(attributes, operator)
    size = _per_axis(attributes.size, "size", operator, spatial=len(source))
    scales = _per_axis(attributes.scale_factor, "scale_factor", operator, spatial=len(source))
    return (*input_shape[:2], *(size or _scaled(source, scales, operator)))


def _require_size(attributes: TorchAttributes, operator: str) -> None:
    if not attributes.size and not attributes.scale_factor:
        raise InvalidFieldError(
            f"operator.{operator}.size", "is empty, and so is scale_factor; give one of the two"
        )


def _check_rank(attributes: TorchAttributes, call: OperatorCall) -> None:
    spatial = len(call.source) - 2
    expected = SPATIAL_AXES.get(attributes.mode, spatial)
    if spatial != expected:
        raise InvalidFieldError(
            call.attribute("mode"),
            f"is {attributes.mode!r}, which takes tensors of {expected + 2} axes; this tensor has "
            f"{spatial + 2}: batch, channel and {spatial} spatial",
            mode=attributes.mode,
            came=spatial + 2,
            expected=expected + 2,
        )


def _scaled(source: Shape, scales: Sequence[float], operator: str) -> Shape:
    """Return trunc(size * scale_factor) of each axis, in float64; nothing without scales."""
    sizes: list[int] = []
    for i, (size, scale) in enumerate(zip(source, scales, strict=False)):
        product = float(size) * scale
        if not 1 <= product <= LARGEST_INFERRED_SIZE:
            raise InvalidFieldError(
                f"operator.{operator}.scale_factor[{i}]",
                f"is {scale}, which scales {size} elements to {product:g}; give a number that "
                f"results in 1 to 2**53",
                came=scale,
                size=size,
            )
        sizes.append(int(product))
    return tuple(sizes)


DIALECTS: Final = (
    Dialect(
        "torch_upsample_backward",
        gradient=True,
        ranks=range(3, 6),
        axes=_gradient_axes,
        by_compute=True,
    ),
    Dialect(
        "torch_interpolate",
        gradient=False,
        ranks=range(3, 6),
        axes=_forward_axes,
        output_shape=_output_shape,
        by_compute=True,
    ),
)
