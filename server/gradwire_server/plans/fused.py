"""The fused multiply-add of processors, a * b + c rounded once, on arrays and on any machine.

Frameworks' compilers contract products and sums; their weights then differ in the last bit from
those rounded after each step. NumPy has no such operation.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=np.floating[Any])
Doubles = npt.NDArray[np.float64]

# Splits a float64 into two halves of 26 bits (Veltkamp).
_SPLIT = 2.0**27 + 1


def fma(a: npt.NDArray[F], b: npt.NDArray[F], c: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return a * b + c with one rounding, to nearest even; all are float32 or all are float64.

    Exact unless a float64 product, or a part of it, overflows or is below 2**-960.
    """
    wide = [each.astype(np.float64) for each in (a, b, c)]
    if a.dtype == np.float64:
        return _fma64(*wide).astype(a.dtype, copy=False)
    # A product of two float32 is exact in float64; a sum rounded to odd there has bits enough that
    # rounding it again is as good as rounding once.
    return _sum_to_odd(wide[0] * wide[1], wide[2]).astype(a.dtype)


def _fma64(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """Add the exact product's two parts by way of a sum rounded to odd.

    Source: Boldo and Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms
    using rounding to odd, IEEE Transactions on Computers 57(4), 2008.
    """
    high, low = exact_product(a, b)
    over, under = exact_sum(c, low)
    most, rest = exact_sum(high, over)
    return most + _sum_to_odd(under, rest)


def exact_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the rounded product and what was rounded off (Dekker)."""
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
    """Return the rounded sum and what was rounded off (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a: Doubles, b: Doubles) -> Doubles:
    """Return a + b, where it is inexact the neighbor whose last bit is odd."""
    total, rest = exact_sum(a, b)
    even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
    beyond = np.nextafter(total, np.copysign(np.inf, rest))
    odd: Doubles = np.where((rest != 0) & even, beyond, total)
    return odd
