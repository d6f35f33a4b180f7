"""How far two results of one shape and type are apart, to the bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of an element type: largest, smallest above 0, and from 1 to the next one."""

    most: float
    least: float
    eps: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Bounds:
        """Return those of a type."""
        facts = cast("Any", ml_dtypes.finfo(dtype))  # type: ignore[no-untyped-call]
        return cls(float(facts.max), float(facts.smallest_subnormal), float(facts.eps))


@dataclass(frozen=True, slots=True)
class Difference:
    """Two results that do not have the same bits; every NaN is taken for every other.

    count     elements that differ
    first     index of the first of them in row-major order
    largest   index of the one that differs most, in ulps; one that is NaN, or is infinite, in one
              result only counts as most
    absolute  how much that one differs; nan or inf where one is
    ulps      numbers of the type that lie between, plus 1; 0 for zeros of two signs, None with NaN
    """

    count: int
    first: Index
    largest: Index
    absolute: float
    ulps: int | None


def difference(one: Array, other: Array) -> Difference | None:
    """Compare two arrays of one shape and type; return None where they are equal."""
    differs = differing(one, other)
    if not differs.any():
        return None
    places = np.flatnonzero(differs)
    ours, theirs = one.reshape(-1)[places], other.reshape(-1)[places]
    apart = ulps_between(ours, theirs)
    broken = ~(np.isfinite(ours) & np.isfinite(theirs))
    most = int(np.argmax(broken)) if broken.any() else int(np.argmax(apart))
    with np.errstate(all="ignore"):
        absolute = abs(float(ours[most]) - float(theirs[most]))
    unordered = bool(np.isnan(ours[most]) | np.isnan(theirs[most]))
    return Difference(
        count=len(places),
        first=_index(places[0], one.shape),
        largest=_index(places[most], one.shape),
        absolute=absolute,
        ulps=None if unordered else int(apart[most]),
    )


def differing(one: Array, other: Array) -> NDArray[np.bool_]:
    """Tell for each element whether its bits differ, with all NaNs alike."""
    unequal: NDArray[np.bool_] = _bits(one) != _bits(other)
    return unequal & ~(np.isnan(one) & np.isnan(other))


def ulps_between(one: Array, other: Array) -> NDArray[np.uint64]:
    """Count the steps from each number to the other one; what it counts with NaN means nothing."""
    first, second = _place(one), _place(other)
    return np.maximum(first, second) - np.minimum(first, second)


def ulps_off(expected: Array, came: Array, magnitude: Array) -> NDArray[np.float64]:
    """Tell how far numbers are off: an ulp is that of the same sum over magnitudes.

    Where a sum cancels its own ulp says nothing about how well it was computed.
    """
    with np.errstate(all="ignore"):
        one, other, size = (each.astype(np.float64) for each in (expected, came, magnitude))
        scale = np.maximum(np.abs(one), np.abs(size))
        bounds = Bounds.of(expected.dtype)
        _, exponent = np.frexp(np.where(np.isfinite(scale), scale, bounds.most))
        ulp = np.maximum(np.ldexp(bounds.eps, exponent - 1), bounds.least)
        finite = np.isfinite(one) & np.isfinite(other)
        return np.where(finite, np.abs(one - other) / ulp, math.inf)


def _bits(array: Array) -> NDArray[np.unsignedinteger[Any]]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _place(array: Array) -> NDArray[np.uint64]:
    """Return the rank of each number among all of its type, both zeros alike."""
    top = np.uint64(1 << (8 * array.dtype.itemsize - 1))
    bits = _bits(array).astype(np.uint64)
    size = bits & (top - np.uint64(1))
    return np.where(bits & top, top - size, top + size)


def _index(place: Any, shape: Index) -> Index:
    index: list[int] = np.array(np.unravel_index(place, shape), np.int64).tolist()
    return tuple(index)
