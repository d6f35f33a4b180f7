"""Plans: the maps applied to a tensor, axis by axis.

A dialect makes them from an operator.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.banded_map import BandedMap

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """One map along one axis."""

    axis: int
    map: BandedMap


@dataclass(frozen=True, eq=False)
class Plan:
    """Passes in the order of their application.

    Axes are logical and ascend; identities are left out.

    input_shape   shape of the input
    passes        each pass reads the result of the one before
    fill          value of elements whose band is empty on at least one axis
    output_shape  shape of the result

    Raises ValueError if a map does not fit the shape.
    """

    input_shape: Shape
    passes: tuple[Pass, ...] = ()
    fill: float = 0.0
    output_shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        shape = self.input_shape
        for one, result in zip(self.passes, self._results(), strict=True):
            if shape[one.axis] != one.map.inputs:
                raise ValueError(
                    f"the map of axis {one.axis} reads {one.map.inputs} inputs; "
                    f"the tensor is {list(shape)} there"
                )
            shape = result
        object.__setattr__(self, "output_shape", shape)

    @classmethod
    def build(
        cls, maps: Sequence[BandedMap | None], input_shape: Shape, *, fill: float = 0.0
    ) -> Plan:
        """Return the plan that applies maps[a] along axis a.

        None stands for the identity.
        """
        passes = tuple(
            Pass(axis, one)
            for axis, one in enumerate(maps)
            if one is not None and not one.is_identity
        )
        return cls(input_shape, passes, fill)

    def permuted(self, order: Sequence[int]) -> Plan:
        """Return the plan for a tensor with permuted axes.

        Stored axis s is logical axis order[s]. The passes keep their order.
        """
        return Plan(
            tuple(self.input_shape[axis] for axis in order),
            tuple(Pass(order.index(one.axis), one.map) for one in self.passes),
            self.fill,
        )

    @property
    def work(self) -> int:
        """Multiplications of all passes: elements times taps."""
        return sum(
            math.prod(shape[: one.axis] + shape[one.axis + 1 :]) * one.map.nnz
            for one, shape in zip(self.passes, self._results(), strict=True)
        )

    @property
    def largest_intermediate(self) -> int:
        """Elements of the largest result of any pass.

        The last pass is included; 0 without passes.
        """
        return max(map(math.prod, self._results()), default=0)

    @property
    def table_entries(self) -> int:
        """Size of all tables: weights, outputs and inputs."""
        return sum(one.map.nnz + one.map.outputs + one.map.inputs for one in self.passes)

    def digest_update(self, digest: Any) -> None:
        """Hash shapes, fill, axes and tables, little-endian, each with its length."""
        for shape in (self.input_shape, self.output_shape):
            digest.update(struct.pack(f"<q{len(shape)}q", len(shape), *shape))
        digest.update(struct.pack("<dq", self.fill, len(self.passes)))
        for one in self.passes:
            sides = (one.axis, one.map.outputs, one.map.inputs, one.map.nnz)
            digest.update(struct.pack("<4q", *sides))
            digest.update(_little_endian(one.map.start, "<i8"))
            digest.update(_little_endian(one.map.offset, "<i8"))
            digest.update(_little_endian(one.map.weight, "<f8"))

    def _results(self) -> Iterator[Shape]:
        """Yield the shape after each pass."""
        shape = self.input_shape
        for one in self.passes:
            shape = (*shape[: one.axis], one.map.outputs, *shape[one.axis + 1 :])
            yield shape


def fill_empty(passes: Sequence[Pass], result: npt.NDArray[Any], *, fill: float) -> None:
    """Write fill to the result's elements with an empty band.

    The band may be empty on any of the axes.
    """
    for one in passes:
        empty = np.flatnonzero(one.map.counts == 0)
        if len(empty):
            result[(slice(None),) * one.axis + (empty,)] = fill


def _little_endian(array: npt.NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(array, kind).data


F = TypeVar("F", bound=np.floating[Any])
Doubles = npt.NDArray[np.float64]

# Cost of a few fused products and sums relative to plain ones, by arithmetic type.
FMA_EFFORT: Final[dict[np.dtype[np.floating], int]] = {
    np.dtype(np.float32): 7,
    np.dtype(np.float64): 16,
}
# Splits a float64 into two halves of 26 bits (Veltkamp).
_SPLIT = 2.0**27 + 1


def fma(a: npt.NDArray[F], b: npt.NDArray[F], c: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return a * b + c with one rounding, to nearest even.

    All are float32 or all are float64. Exact unless a float64 product, or a part of it, overflows
    or is below 2**-960.
    """
    wide = [each.astype(np.float64) for each in (a, b, c)]
    if a.dtype == np.float64:
        return _fma64(*wide).astype(a.dtype, copy=False)
    # A product of two float32 is exact in float64; a sum rounded to odd there has enough bits that
    # the second rounding gives the same result as a single one.
    return _sum_to_odd(wide[0] * wide[1], wide[2]).astype(a.dtype)


def _fma64(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Add the exact product's two parts with a sum rounded to odd.

    Source: Boldo and Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms
    using rounding to odd, IEEE Transactions on Computers 57(4), 2008.
    """
    high, low = exact_product(a, b)
    over, under = exact_sum(c, low)
    most, rest = exact_sum(high, over)
    return most + _sum_to_odd(under, rest)


def exact_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the rounded product and its rounding error (Dekker)."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    rest = a_high * b_high - product + a_high * b_low + a_low * b_high + a_low * b_low
    return product, rest


def _halves(x: Doubles) -> tuple[Doubles, Doubles]:
    spread = x * _SPLIT
    high = spread - (spread - x)
    return high, x - high


def exact_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the rounded sum and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a: Doubles, b: Doubles) -> Doubles:
    """Return a + b rounded to odd.

    An inexact sum gives the neighbor whose last bit is odd.
    """
    total, rest = exact_sum(a, b)
    even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
    beyond = np.nextafter(total, np.copysign(np.inf, rest))
    odd: Doubles = np.where((rest != 0) & even, beyond, total)
    return odd
