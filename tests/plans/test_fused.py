"""a * b + c with one rounding, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire_server.plans.plan import fma

SINGLES = st.floats(2.0**-40, 2.0**40, width=32)
DOUBLES = st.floats(2.0**-300, 2.0**300)


def nearest_single(exact: Fraction) -> np.float32:
    """Round to nearest even without a first rounding to float64."""
    guess = np.float32(float(exact))
    below, above = (np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf))
    candidates = sorted(
        (below, guess, above),
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.int32)) & 1),
    )
    return np.float32(candidates[0])


def signed(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.tuples(numbers, st.sampled_from([1.0, -1.0])).map(lambda each: each[0] * each[1])


@given(a=signed(SINGLES), b=signed(SINGLES), c=signed(SINGLES))
# The product lies a hair above the middle between two floats, which a rounding to float64 loses.
@example(a=1 + 2.0**-23, b=2.0**-24, c=1.0)
@example(a=1.0, b=2.0**-24, c=1.0)
@example(a=3.0, b=5.0, c=-15.0)
def test_singles_are_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    (result,) = fma(*(np.array([each], np.float32) for each in (a, b, c)))
    assert result.dtype == np.float32
    assert result == nearest_single(exact)


@given(a=signed(DOUBLES), b=signed(DOUBLES), c=signed(DOUBLES), scale=st.integers(-60, 60))
@example(a=1 + 2.0**-52, b=1 - 2.0**-52, c=-1.0, scale=0)
def test_doubles_are_rounded_once(a: float, b: float, c: float, scale: int) -> None:
    # Near the product's size, where both matter.
    c = float(np.copysign(np.ldexp(np.frexp(a * b)[0], np.frexp(a * b)[1] + scale), c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    (result,) = fma(np.array([a]), np.array([b]), np.array([c]))
    assert result == float(exact)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_cancels_leaves_what_the_product_would_have_lost(kind: type[np.floating]) -> None:
    tenth = np.array([0.1], kind)
    (lost,) = fma(tenth, tenth, -(tenth * tenth))
    exact = Fraction(float(tenth[0])) ** 2 - Fraction(float((tenth * tenth)[0]))
    assert lost != 0
    assert Fraction(float(lost)) == exact
