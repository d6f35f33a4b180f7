"""How long an ONNX Resize makes each axis, and by which scale.

    scales      length = floor(scale * input)
    sizes       length = size, scale = size / input; where an aspect ratio is kept, scale is the
                least or greatest of these, and length = round(scale * input), halves upward

in the type of the arithmetic. The published text has floor(input * (roi_end - roi_start) * scale);
ONNX's own shape inference, its reference implementation and ONNX Runtime all leave the roi out, and
so does this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from gradwire_server.dialects.dialect import Shape
from gradwire_server.errors import InvalidFieldError
from gradwire_server.text import counted, shortest

# Beyond it int64(float) and float(int64) no longer name the same number.
LARGEST_INFERRED_SIZE: Final = 2**53

_PICK: Final = {"not_larger": min, "not_smaller": max}


class Sizing(Protocol):
    """Attributes that tell lengths; an array has one value per axis, or per element of axes."""

    @property
    def axes(self) -> Sequence[int]:
        """Axes that are resized, each from -rank to rank - 1; empty means all of them."""
        ...

    @property
    def scales(self) -> Sequence[float]:
        """Scales, output over input."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Lengths of the forward's output."""
        ...

    @property
    def keep_aspect_ratio_policy(self) -> str:
        """One of stretch, not_larger and not_smaller."""
        ...


@dataclass(frozen=True, slots=True)
class Extent:
    """What becomes of the length of one axis.

    outputs  its length in the forward's output
    scale    outputs over inputs, before outputs were cut to a whole number
    width    scale times inputs
    """

    outputs: int
    scale: np.floating[Any]
    width: np.floating[Any]


def named_axes(attributes: Sizing, operator: str, *, rank: int) -> list[int]:
    """Return the axes that are resized, in the order of the arrays; raise InvalidFieldError."""
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
    attributes: Sizing,
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
                f"is {shortest(each)}, which makes {width:g} of {length} elements; give a scale "
                f"that leaves 1 to 2**53",
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
                f"is {sizes[i]}; the scale {scale:g} of {policy} makes {width:g} of {length} "
                f"elements there; give sizes that leave 0.5 to 2**53",
                came=sizes[i],
                size=length,
            )
        made.append(Extent(outputs, scale, width))
    return made


def _width(scale: np.floating[Any], length: int) -> Any:
    """Return scale * length in the type of scale; infinite where it overflows."""
    with np.errstate(over="ignore"):
        return scale * type(scale)(length)
