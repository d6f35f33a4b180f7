"""What oneDNN's sizes, scales and sizes tensor say about the shapes, and whether they agree.

oneDNN's newer text lets sizes win where scales are given too; InterpolateBackprop-1 has them
exclude each other. Here all that is given must agree: with each other, and with the spatial sizes
of src and dst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from gradwire_server.dialects.dialect import Shape
from gradwire_server.errors import InvalidFieldError
from gradwire_server.text import counted, shortest

# Beyond it int64(float) and float(int64) no longer name the same number.
LARGEST_INFERRED_SIZE: Final = 2**53


class Sizing(Protocol):
    """Attributes that tell dst's spatial sizes; each is empty or has one value per spatial axis."""

    @property
    def sizes(self) -> Sequence[int]:
        """Spatial sizes of dst."""
        ...

    @property
    def scales(self) -> Sequence[float]:
        """Spatial scales, dst over src."""
        ...

    @property
    def sizes_tensor(self) -> Sequence[int]:
        """Values of the optional third input, spatial sizes of dst."""
        ...


def require_sizes(attributes: Sizing, operator: str) -> None:
    """Raise InvalidFieldError where nothing tells dst's sizes; oneDNN's Interpolate needs that."""
    if not (attributes.sizes or attributes.scales or attributes.sizes_tensor):
        raise InvalidFieldError(
            f"operator.{operator}.sizes",
            "is empty, and so are scales and sizes_tensor; give one of the three",
        )


def inferred_sizes(attributes: Sizing, operator: str, *, src: Shape) -> Shape:
    """Return dst's spatial sizes: sizes, else the sizes tensor, else int64(float32(src) * scale).

    The product is a float32, cut toward zero, as in oneDNN's graph shape inference. Raises
    InvalidFieldError where nothing is given, where what is given disagrees, or where a scale gives
    no usable size.
    """
    require_sizes(attributes, operator)
    _check_lengths(attributes, operator, spatial=len(src))
    dst = tuple(attributes.sizes or attributes.sizes_tensor) or tuple(
        _scaled(size, scale, field=f"operator.{operator}.scales[{i}]")
        for i, (size, scale) in enumerate(zip(src, attributes.scales, strict=True))
    )
    check_sizes(attributes, operator, src=src, dst=dst)
    return dst


def check_sizes(attributes: Sizing, operator: str, *, src: Shape, dst: Shape) -> None:
    """Raise InvalidFieldError unless all that is given agrees with spatial sizes src and dst.

    A scale agrees where abs(float32(src) * scale - dst) < 1.
    """
    _check_lengths(attributes, operator, spatial=len(src))
    for field, values in (("sizes", attributes.sizes), ("sizes_tensor", attributes.sizes_tensor)):
        # An empty array says nothing.
        for i, (value, expected) in enumerate(zip(values, dst, strict=False)):
            if value != expected:
                raise InvalidFieldError(
                    f"operator.{operator}.{field}[{i}]",
                    f"is {value}, dst has {expected} elements there; give {expected}, or leave "
                    f"{field} empty",
                    came=value,
                    expected=expected,
                )
    for i, (scale, size, expected) in enumerate(zip(attributes.scales, src, dst, strict=False)):
        product = _product(size, scale)
        if not abs(product - expected) < 1:
            raise InvalidFieldError(
                f"operator.{operator}.scales[{i}]",
                f"is {shortest(scale)}, which takes src's {size} elements to {product:g}, dst has "
                f"{expected}; give {expected / size:.9g}, or leave scales empty",
                came=shortest(scale),
                expected=f"{expected / size:.9g}",
            )


def _check_lengths(attributes: Sizing, operator: str, *, spatial: int) -> None:
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
            f"is {shortest(scale)}, which takes src's {size} elements to {product:g}; "
            f"give a scale that leaves 1 to 2**53",
            came=shortest(scale),
            size=size,
        )
    return int(product)
