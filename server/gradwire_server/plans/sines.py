"""Sines with the same bits on every machine.

NumPy's and C's differ between machines. `sin` is correctly rounded. `sinf` has the bits of GNU's C
library for floats, not always the nearest: frameworks on Linux compute float32 weights with it.

Most float32 results need far fewer bits than `sin` computes: `quick_sin` takes a tenth of the time
and is accurate enough unless a value lies near a rounding boundary, which `unsettled` detects.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import factorial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.plan import exact_product, exact_sum, fma

Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
_SumOf = Callable[[Doubles, Doubles, Doubles], Doubles]


# Cost of a product of two sines relative to a few sums, by arithmetic type.
EFFORT: Final[dict[np.dtype[np.floating], int]] = {
    np.dtype(np.float32): 9,
    np.dtype(np.float64): 80,
}


class _Double(NamedTuple):
    """Sum of two float64.

    The second is below half the last place of the first.
    """

    high: Doubles
    low: Doubles


def sin(x: Doubles) -> Doubles:
    """Return the sine, rounded once, of numbers up to 1000.

    Two float64 carry more than 90 bits from reduction to the end; a sine closer than that to the
    midpoint of two floats would be rounded wrongly. For most sines 60 bits are enough.
    """
    near = _sine_in_parts(x, long_factors=_FEW_FACTORS)
    error = _FEW_ERROR * np.abs(near.high)
    doubtful = near.high + (near.low - error) != near.high + (near.low + error)
    result = near.high
    result[doubtful] = _sine_in_parts(x[doubtful], long_factors=_LONG_FACTORS).high
    return result


def _sine_in_parts(x: Doubles, *, long_factors: int) -> _Double:
    turns = np.rint(x * (2 / np.pi))
    rest = _less(x, turns)
    square = _product(rest, rest)
    quarter = turns.astype(np.int64) & 3
    cosine = quarter & 1 == 1
    first = _chosen(cosine, _Double(np.ones_like(x), np.zeros_like(x)), rest)
    total = _product(_product(first, square), _series(square, cosine, long_factors))
    result, sign = _sum(first, total), np.where(quarter & 2 == 0, 1.0, -1.0)
    return _Double(sign * result.high, sign * result.low)


def quick_sin(x: Doubles) -> Doubles:
    """Return the sine of floats up to 1000.

    The relative error is below 2**-47.
    """
    turns = np.rint(x * (1 / np.pi))
    rest = ((x - turns * _PI[0]) - turns * _PI[1]) - turns * _PI[2]
    square = rest * rest
    total = np.full_like(x, _TAYLOR[-1])
    for factor in reversed(_TAYLOR[:-1]):
        total *= square
        total += factor
    total *= square
    total *= rest
    total += rest
    return np.where(turns.astype(np.int64) & 1 == 0, total, -total)


def unsettled(x: Doubles) -> npt.NDArray[np.bool_]:
    """Return where a relative error of 2**-46 may change the nearest float32."""
    low, high = (x * (1 + error) for error in (-_QUICK_ERROR, _QUICK_ERROR))
    differ: npt.NDArray[np.bool_] = low.astype(np.float32) != high.astype(np.float32)
    return differ


def sin_as_float32(x: Doubles) -> Singles:
    """Return sin(x), rounded to float32."""
    quick = quick_sin(x)
    (doubtful,) = unsettled(quick.ravel()).nonzero()
    result = quick.astype(np.float32)
    if len(doubtful):
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


def _polynomial(x: Doubles, sum_of: _SumOf) -> Doubles:
    """Return GNU's sine of numbers up to 120.

    sum_of(a, b, c) is a * b + c.
    """
    turns = np.where(np.abs(x) < np.pi / 4, 0, np.rint(x * (2 / np.pi)))
    # Rounded once, as if fused: all other products and differences are exact.
    rest = (x - turns * _HALF_PI[0]) - turns * (np.pi / 2 - _HALF_PI[0])
    quarter = turns.astype(np.int64) & 3
    value = np.where(quarter & 1 == 1, _cosine(rest, sum_of), _sine(rest, sum_of))
    return np.where(quarter & 2 == 0, value, -value)


def _rounded(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    return a * b + c


_SINE: Final = tuple(
    map(float.fromhex, ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13"))
)
_COSINE: Final = tuple(
    map(
        float.fromhex,
        (
            "-0x1.ffffffd0c621cp-2",
            "0x1.55553e1068f19p-5",
            "-0x1.6c087e89a359dp-10",
            "0x1.99343027bf8c3p-16",
        ),
    )
)


def _sine(x: Doubles, sum_of: _SumOf) -> Doubles:
    first, second, third = (np.full_like(x, each) for each in _SINE)
    square = x * x
    cube = x * square
    return sum_of(cube * square, sum_of(square, third, second), sum_of(cube, first, x))


def _cosine(x: Doubles, sum_of: _SumOf) -> Doubles:
    first, second, third, fourth = (np.full_like(x, each) for each in _COSINE)
    square = x * x
    fourth_power = square * square
    low = sum_of(square, first, np.ones_like(x))
    low = sum_of(fourth_power, second, low)
    return sum_of(fourth_power * square, sum_of(square, fourth, third), low)


# Parts of pi / 2 of 40 bits each: their products with small whole numbers are exact.
_HALF_PI: Final = tuple(
    map(
        float.fromhex,
        ("0x1.921fb54442p+0", "0x1.a308d31318p-41", "0x1.8a2e037072p-81", "0x1.44a4093822p-121"),
    )
)


_PI: Final = tuple(2 * part for part in _HALF_PI)
_QUICK_ERROR: Final = 2.0**-46
# Taylor coefficients up to x**19; at pi / 2 the next term is below 2**-51.
_TAYLOR: Final = tuple((-1) ** (power // 2) / factorial(power) for power in range(3, 20, 2))


def _less(x: Doubles, turns: Doubles) -> _Double:
    """Return x minus quarter turns, to 100 bits even under cancellation."""
    terms = [-turns * part for part in reversed(_HALF_PI)] + [x]
    # A sweep leaves the sum in the last term and rounding errors in the others; two sweeps equal
    # three times the bits (Ogita, Rump and Oishi, Accurate sum and dot product, 2005).
    for _ in range(2):
        for i in range(len(terms) - 1):
            terms[i + 1], terms[i] = exact_sum(terms[i + 1], terms[i])
    return _Double(*exact_sum(terms[-1], terms[-2] + sum(terms[:-2])))


def _product(a: _Double, b: _Double) -> _Double:
    high, low = exact_product(a.high, b.high)
    return _Double(*exact_sum(high, low + (a.high * b.low + a.low * b.high)))


def _sum(a: _Double, b: _Double) -> _Double:
    high, low = exact_sum(a.high, b.high)
    return _Double(*exact_sum(high, low + (a.low + b.low)))


def _chosen(condition: npt.NDArray[np.bool_], a: _Double, b: _Double) -> _Double:
    return _Double(np.where(condition, a.high, b.high), np.where(condition, a.low, b.low))


def _series(square: _Double, cosine: npt.NDArray[np.bool_], long_factors: int) -> _Double:
    """Return a Taylor series by Horner's rule.

    -1/3! + z/5! - ... or, for cosines, -1/2! + z/4! - ...

    One float64 is enough for the sum of the terms from z**long_factors on: it is below 2**-45 of
    the sine if long_factors is 7, and below 2**-10 if it is 2.
    """
    high = np.zeros_like(square.high)
    for of_cosine, of_sine in reversed(_FACTORS[long_factors:]):
        high = np.where(cosine, of_cosine[0], of_sine[0]) + square.high * high
    total = _Double(high, np.zeros_like(high))
    for of_cosine, of_sine in reversed(_FACTORS[:long_factors]):
        factor = _Double(*map(np.where, (cosine, cosine), of_cosine, of_sine))
        total = _sum(factor, _product(square, total))
    return total


def _factor(power: int) -> tuple[float, float]:
    """Return the Taylor coefficient of x**power, as two float64.

    It is 1 / power! of either sign.
    """
    exact = Fraction((-1) ** (power // 2), factorial(power))
    return float(exact), float(exact - Fraction(float(exact)))


# Taylor coefficients of cosine and sine, from x**2 and x**3 on.
_FACTORS: Final = [(_factor(power), _factor(power + 1)) for power in range(2, 28, 2)]
_LONG_FACTORS: Final = 7
_FEW_FACTORS: Final = 2
_FEW_ERROR: Final = 2.0**-60
