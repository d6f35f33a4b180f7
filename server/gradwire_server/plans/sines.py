"""Sines with the same bits on every machine.

NumPy's and C's differ between machines. `sin` is correctly rounded. `sinf` has the bits of GNU's C
library for floats, not always the nearest: frameworks on Linux compute float32 weights with it.

NumPy's sine is accurate enough for most results on any machine: the others, which lie near a
rounding boundary, are computed exactly, or as GNU's C library does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.plan import fma

Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
_SumOf = Callable[[Doubles, Doubles, Doubles], Doubles]


# Cost of a product of two sines relative to a few sums, by arithmetic type.
EFFORT: Final[dict[np.dtype[np.floating], int]] = {
    np.dtype(np.float32): 9,
    np.dtype(np.float64): 80,
}


# Twice the relative error of extended precision, or of NumPy's float64.
_EXTENDED_ERROR: Final = 2.0**-61
_DOUBLE_ERROR: Final = 2.0**-46


def sin(x: Doubles) -> Doubles:
    """Return the sine, rounded once, of numbers up to 1000."""
    extended = np.sin(x.astype(np.longdouble))
    low, high = (extended * (1 + np.longdouble(side * _EXTENDED_ERROR)) for side in (-1, 1))
    result = low.astype(np.float64)
    # Extended precision is float64 on some processors, under Valgrind, and if a program says so.
    is_extended = np.longdouble(1) + np.longdouble(2.0**-63) != 1
    doubtful = (result != high.astype(np.float64)) | (not is_extended)
    result[doubtful] = [_exact_sine(each) for each in x[doubtful].tolist()]
    return result


# Bits of fractions in integers, and pi with so many.
_BITS: Final = 192
_PI: Final = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0


def _exact_sine(x: float) -> float:
    """Sum the Taylor series in integers, to 100 bits and more."""
    if abs(x) < 2.0**-26:
        return x
    numerator, denominator = x.as_integer_ratio()
    quarter, rest = divmod((numerator << _BITS + 1) // denominator, _PI)
    rest >>= 1
    cosine = quarter & 1
    square = rest * rest >> _BITS
    term = total = 1 << _BITS if cosine else rest
    power = 1 if cosine else 2
    while term:
        term = -(term * square >> _BITS) // (power * (power + 1))
        total += term
        power += 2
    return math.ldexp(-total if quarter & 2 else total, -_BITS)


def unsettled(x: Doubles) -> npt.NDArray[np.bool_]:
    """Return where a relative error of 2**-46 may change the nearest float32."""
    low, high = (x * (1 + side * _DOUBLE_ERROR) for side in (-1, 1))
    differ: npt.NDArray[np.bool_] = low.astype(np.float32) != high.astype(np.float32)
    return differ


def sin_as_float32(x: Doubles) -> Singles:
    """Return sin(x), rounded to float32."""
    quick = np.sin(x)
    (doubtful,) = unsettled(quick.ravel()).nonzero()
    result = quick.astype(np.float32)
    result.reshape(-1)[doubtful] = sin(x.reshape(-1)[doubtful])
    return result


def sinf(x: Singles) -> Singles:
    """Return GNU's sinf of two ranges of numbers.

    They are from pi / 4 to 120 and from 0 to pi / 4, of either sign.

    Source: the polynomials of Arm's Optimized Routines, in glibc since release 2.28, with fused
    multiply-adds as on processors that have them. Here products are rounded wherever that gives
    the same float32.
    """
    wide = x.astype(np.float64)
    value = _polynomial(wide, _rounded)
    (doubtful,) = unsettled(value.ravel()).nonzero()
    if len(doubtful):
        value.reshape(-1)[doubtful] = _polynomial(wide.reshape(-1)[doubtful], fma)
    return np.where(np.abs(x) < 2.0**-12, x, value.astype(np.float32))


# The first 40 bits of pi / 2, whose products with small whole numbers are exact.
_HALF_PI: Final = float.fromhex("0x1.921fb54442p+0")


def _polynomial(x: Doubles, sum_of: _SumOf) -> Doubles:
    """Return GNU's sine of numbers up to 120.

    sum_of(a, b, c) is a * b + c.
    """
    turns = np.where(np.abs(x) < np.pi / 4, 0, np.rint(x * (2 / np.pi)))
    # Rounded once, as if fused: all other products and differences are exact.
    rest = (x - turns * _HALF_PI) - turns * (np.pi / 2 - _HALF_PI)
    quarter = turns.astype(np.int64) & 3
    value = np.where(quarter & 1 == 1, _cosine(rest, sum_of), _sine(rest, sum_of))
    return np.where(quarter & 2 == 0, value, -value)


def _rounded(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    return a * b + c


def _constants(*texts: str) -> list[Doubles]:
    return [np.array(float.fromhex(text)) for text in texts]


_SINE: Final = _constants("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13")
_COSINE: Final = _constants(
    "0x1.0p+0",
    "-0x1.ffffffd0c621cp-2",
    "0x1.55553e1068f19p-5",
    "-0x1.6c087e89a359dp-10",
    "0x1.99343027bf8c3p-16",
)


def _sine(x: Doubles, sum_of: _SumOf) -> Doubles:
    first, second, third = _SINE
    square = x * x
    cube = x * square
    return sum_of(cube * square, sum_of(square, third, second), sum_of(cube, first, x))


def _cosine(x: Doubles, sum_of: _SumOf) -> Doubles:
    one, first, second, third, fourth = _COSINE
    square = x * x
    fourth_power = square * square
    low = sum_of(fourth_power, second, sum_of(square, first, one))
    return sum_of(fourth_power * square, sum_of(square, fourth, third), low)
