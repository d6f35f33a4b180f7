"""A sine with the same bits on every machine: sums and products alone, each rounded once.

Libraries' sines differ in the last bit from one processor to the next, and so would the weights of
a Lanczos filter.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

# pi / 2 in three parts. The first two have 33 bits, so that small multiples are exact (Cody and
# Waite, Software Manual for the Elementary Functions, 1980).
_HALF_PI: Final = (
    float.fromhex("0x1.921fb544p+0"),
    float.fromhex("0x1.0b4611a6p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)

# Taylor coefficients of sin(r) / r and cos(r) in powers of -r * r; up to pi / 4 the first terms
# left out are below 2**-58.
_SINE: Final = [1 / math.factorial(2 * n + 1) for n in range(9)]
_COSINE: Final = [1 / math.factorial(2 * n) for n in range(10)]


def sine(x: Doubles) -> Doubles:
    """Return sin(x), within two units of the last place, of float64 numbers below 2**18."""
    quarter = np.rint(x * (2 / math.pi))
    rest = x
    for part in _HALF_PI:
        rest = rest - quarter * part
    square = -rest * rest
    of_sine, of_cosine = rest * _series(_SINE, square), _series(_COSINE, square)
    turn = quarter.astype(np.int64) & 3
    sine = np.where(turn & 1, of_cosine, of_sine)
    return np.where(turn & 2, -sine, sine)


def _series(coefficients: list[float], x: Doubles) -> Doubles:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
