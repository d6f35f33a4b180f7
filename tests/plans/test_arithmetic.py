"""a * b + c with one rounding, and sines, against exact fractions and the C library."""

import ctypes
import platform
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire_server.plans.plan import fma
from gradwire_server.plans.sines import sin, sin_as_float32, sinf, unsettled

SINGLES = st.floats(2.0**-40, 2.0**40, width=32)
DOUBLES = st.floats(2.0**-300, 2.0**300)


def nearest_single(exact):
    """Round to nearest even without a first rounding to float64."""
    guess = np.float32(float(exact))
    below, above = (np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf))
    candidates = sorted(
        (below, guess, above),
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.int32)) & 1),
    )
    return np.float32(candidates[0])


def signed(numbers):
    return st.tuples(numbers, st.sampled_from([1.0, -1.0])).map(lambda each: each[0] * each[1])


@given(a=signed(SINGLES), b=signed(SINGLES), c=signed(SINGLES))
# The product lies a hair above the middle between two floats, which a rounding to float64 loses.
@example(a=1 + 2.0**-23, b=2.0**-24, c=1.0)
@example(a=1.0, b=2.0**-24, c=1.0)
@example(a=3.0, b=5.0, c=-15.0)
# The sum is what the product alone would have lost.
@example(a=1 + 2.0**-12, b=1 + 2.0**-12, c=-1 - 2.0**-11)
def test_singles_are_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    (result,) = fma(*(np.array([each], np.float32) for each in (a, b, c)))
    assert result.dtype == np.float32
    assert result == nearest_single(exact)


@given(a=signed(DOUBLES), b=signed(DOUBLES), c=signed(DOUBLES), scale=st.integers(-60, 60))
@example(a=1 + 2.0**-52, b=1 - 2.0**-52, c=-1.0, scale=0)
def test_doubles_are_rounded_once(a, b, c, scale):
    # Near the product's size, where both matter.
    c = float(np.copysign(np.ldexp(np.frexp(a * b)[0], np.frexp(a * b)[1] + scale), c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    (result,) = fma(np.array([a]), np.array([b]), np.array([c]))
    assert result == float(exact)


BITS = 300


def exact_sine(x):
    """Sum the series until its terms are below 2**-300 of what matters here."""
    square, total = Fraction(x) ** 2, Fraction(0)
    term, power = Fraction(x), 1
    while abs(term) > Fraction(1, 2**BITS):
        total += term
        term = -term * square / ((power + 1) * (power + 2))
        # Long fractions cost time, and bits beyond these change nothing.
        term = Fraction(round(term * 2 ** (BITS + 40)), 2 ** (BITS + 40))
        power += 2
    return total


@given(x=st.floats(-30, 30) | st.integers(-19, 19).map(lambda n: n * np.pi / 2))
@example(x=0.0)
@example(x=np.pi)
@example(x=1e-3)
def test_a_sine_is_the_nearest_float64(x):
    if 0 < abs(x) < 2.0**-100:
        return
    expected = float(exact_sine(x))
    assert sin(np.array([x]))[0] == expected
    with pytest.MonkeyPatch.context() as patch:
        # As on processors without extended precision.
        patch.setattr(np, "longdouble", np.float64)
        assert sin(np.array([x]))[0] == expected


@given(x=st.floats(-999, 999) | st.integers(-318, 318).map(lambda n: n * np.pi))
@example(x=np.pi)
@example(x=-0.0)
def test_numpys_sine_is_near_and_rounds_to_the_same_float32(x):
    given_one, exact = np.array([x]), float(sin(np.array([x]))[0])
    assert abs(float(np.sin(given_one)[0]) - exact) <= 2.0**-47 * abs(exact)
    assert sin_as_float32(given_one)[0] == np.float32(exact)


def test_numbers_are_unsettled_where_two_roundings_meet():
    float32 = 1 + 2.0**-23
    between = 1 + 2.0**-24
    near = [between, between * (1 + 2.0**-48), between * (1 - 2.0**-47)]
    far = [1.0, float32, between * (1 + 2.0**-44), between * (1 - 2.0**-44), 0.0]
    assert unsettled(np.array(near)).all()
    assert not unsettled(np.array(far)).any()


def test_single_sines_are_those_of_the_c_library():
    name, release = platform.libc_ver()
    if platform.machine() != "x86_64" or name != "glibc" or release < "2.28":
        pytest.skip("compares with glibc 2.28 or newer")
    libm = ctypes.CDLL("libm.so.6")
    libm.sinf.restype, libm.sinf.argtypes = ctypes.c_float, [ctypes.c_float]
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-10, 10, 200_000), 10 ** rng.uniform(-8, 1, 5_000)])
    x = x.astype(np.float32)
    expected = np.array([libm.sinf(float(each)) for each in x], np.float32)
    np.testing.assert_array_equal(sinf(x), expected)
