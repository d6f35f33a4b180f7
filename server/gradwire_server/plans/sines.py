"""Sines with the same bits on every machine, which those of NumPy and of C do not have.

`sin` is correctly rounded. `sinf` has the bits of GNU's C library for floats, which are not always
the nearest: frameworks on Linux make float32 weights of it.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.fused import exact_product, exact_sum, fma

Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


class _Double(NamedTuple):
    """A sum of two float64, the second below half the last place of the first."""

    high: Doubles
    low: Doubles


def sin(x: Doubles) -> Doubles:
    """Return the sine, rounded once, of numbers up to 1000.

    Two float64 carry some 100 bits from reduction to the end; a sine closer than that to the middle
    of two floats would go wrong.
    """
    turns = np.rint(x * (2 / np.pi))
    rest = _less(x, turns)
    square = _product(rest, rest)
    odd, even = _series(square, _ODD), _series(square, _EVEN)
    sine = _sum(rest, _product(_product(rest, square), odd))
    cosine = _sum(_Double(np.ones_like(x), np.zeros_like(x)), _product(square, even))
    quarter = turns.astype(np.int64) & 3
    chosen = np.where(quarter & 1 == 0, sine.high, cosine.high)
    return np.where(quarter & 2 == 0, chosen, -chosen)


def sinf(x: Singles) -> Singles:
    """Return GNU's sinf of numbers from pi / 4 to 120 and from 0 to pi / 4, of either sign.

    Source: the polynomials of Arm's Optimized Routines, which glibc has had since release 2.28,
    with the products of its sums not rounded, as on processors that fuse them.
    """
    wide = x.astype(np.float64)
    turns = np.where(np.abs(wide) < np.pi / 4, 0, np.rint(wide * (2 / np.pi)))
    rest = fma(-turns, np.full_like(wide, np.pi / 2), wide)
    quarter = turns.astype(np.int64) & 3
    odd = quarter & 1 == 1
    value = np.where(odd, _cosine(rest), _sine(rest))
    value = np.where(quarter & 2 == 0, value, -value).astype(np.float32)
    return np.where(np.abs(x) < 2.0**-12, x, value)


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


def _sine(x: Doubles) -> Doubles:
    first, second, third = (np.full_like(x, each) for each in _SINE)
    square = x * x
    cube = x * square
    return fma(cube * square, fma(square, third, second), fma(cube, first, x))


def _cosine(x: Doubles) -> Doubles:
    first, second, third, fourth = (np.full_like(x, each) for each in _COSINE)
    square = x * x
    fourth_power = square * square
    low = fma(square, first, np.ones_like(x))
    low = fma(fourth_power, second, low)
    return fma(fourth_power * square, fma(square, fourth, third), low)


# Parts of pi / 2 of 40 bits each: their products with small whole numbers are exact.
_HALF_PI: Final = tuple(
    map(
        float.fromhex,
        ("0x1.921fb54442p+0", "0x1.a308d31318p-41", "0x1.8a2e037072p-81", "0x1.44a4093822p-121"),
    )
)


def _less(x: Doubles, turns: Doubles) -> _Double:
    """Return x less so many quarter turns, exact but for the last of some 150 bits."""
    terms = [-turns * part for part in reversed(_HALF_PI)] + [x]
    # Each sweep moves what sums round off toward the front, and leaves the sum at the end.
    for _ in terms:
        for i in range(len(terms) - 1):
            terms[i + 1], terms[i] = exact_sum(terms[i + 1], terms[i])
    return _Double(terms[-1], terms[-2])


def _product(a: _Double, b: _Double) -> _Double:
    high, low = exact_product(a.high, b.high)
    return _Double(*exact_sum(high, low + (a.high * b.low + a.low * b.high)))


def _sum(a: _Double, b: _Double) -> _Double:
    high, low = exact_sum(a.high, b.high)
    return _Double(*exact_sum(high, low + (a.low + b.low)))


def _series(square: _Double, coefficients: tuple[tuple[float, float], ...]) -> _Double:
    """Return c0 + c1 z + c2 z z ... by Horner's rule."""
    total: _Double | None = None
    for high, low in reversed(coefficients):
        term = _Double(np.full_like(square.high, high), np.full_like(square.high, low))
        total = term if total is None else _sum(term, _product(square, total))
    assert total is not None  # noqa: S101 - there are coefficients
    return total


def _reciprocals(first: int) -> tuple[tuple[float, float], ...]:
    """Return the factors of Taylor's series, 1 / first!, ... in turn of either sign."""
    signed = (
        Fraction((-1) ** (i + 1), factorial(power)) for i, power in enumerate(range(first, 31, 2))
    )
    return tuple((float(each), float(each - Fraction(float(each)))) for each in signed)


# sin x = x + x z (-1/3! + z/5! ...), cos x = 1 + z (-1/2! + z/4! ...), z = x x.
_ODD: Final = _reciprocals(3)
_EVEN: Final = _reciprocals(2)
