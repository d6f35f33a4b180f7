"""Laws of banded maps and plans, and of the arithmetic and the sines that they use."""

import ctypes
import itertools
import pickle
import platform
import struct
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.plans import BandedMap, Pass, Plan
from gradwire_server.plans.plan import fma
from gradwire_server.plans.sines import sin, sin_as_float32, sinf, unsettled
from support.examples import examples
from support.kernels.backend_calls import applied
from support.kernels.kernel_maps import linear
from support.oracles import oracles


@examples(300)
@given(bands=oracles.banded_maps())
def test_any_map_and_its_adjoint_are_transposes_and_undo_each_other(bands):
    adjoint = bands.adjoint()
    assert adjoint.nnz == bands.nnz
    start, stop = bands.start.tolist(), bands.stop.tolist()
    assert bands.is_increasing == (start == sorted(start) and stop == sorted(stop))
    oracles.same_bits(adjoint.dense(), bands.dense().T.copy())
    np.testing.assert_array_equal(oracles.covered(adjoint), oracles.covered(bands).T)
    # Empty bands alone give no direction: those of a map that descends by nothing else move.
    full = bands.counts > 0
    sides = set(zip(bands.start[full].tolist(), bands.stop[full].tolist(), strict=True))
    assume(bands.is_increasing or len(sides) > 1)
    oracles.assert_same_map(adjoint.adjoint(), bands)


@examples(40)
@given(bands=oracles.banded_maps(most=5))
def test_every_window_is_a_block_of_the_matrix(bands):
    dense, inside = bands.dense(), oracles.covered(bands)
    pairs = itertools.combinations_with_replacement
    for (first, stop), (low, high) in itertools.product(
        pairs(range(bands.outputs + 1), 2), pairs(range(bands.inputs + 1), 2)
    ):
        window, block = bands.window(first, stop, low, high), dense[first:stop, low:high]
        assert window.dense().tobytes() == np.ascontiguousarray(block).tobytes()
        assert (oracles.covered(window) == inside[first:stop, low:high]).all()


def test_only_the_identity_is_the_identity():
    index, one = np.arange(4)[:, None], np.ones((4, 1))
    assert BandedMap.from_blocks([(index, one)], inputs=4).is_identity
    for taps, weight, inputs in (
        (index, one, 5),
        (index[::-1], one, 4),
        (index, one * (1 + 2**-52), 4),
        (np.zeros_like(index), one, 4),
    ):
        assert not BandedMap.from_blocks([(taps, weight)], inputs=inputs).is_identity


def test_bands_beyond_the_inputs_are_refused():
    offset, weight = np.array([0, 2, 4]), np.ones(4)
    BandedMap(2, 3, np.array([0, 1]), offset, weight)
    with pytest.raises(ValueError, match=r"cover the inputs 0 \.\. 2; there are 0 \.\. 1"):
        BandedMap(2, 2, np.array([0, 1]), offset, weight)
    with pytest.raises(ValueError, match=r"cover the inputs -1 \.\. 2"):
        BandedMap(2, 3, np.array([-1, 1]), offset, weight)


def columns_between(matrix):
    """Count what ascending bands must hold.

    That is input c at output o, if some output up to o reads c or beyond, and some output from o on
    reads c or before.
    """
    read = matrix != 0
    beyond = np.logical_or.accumulate(np.logical_or.accumulate(read[:, ::-1], 1)[:, ::-1], 0)
    before = np.logical_or.accumulate(np.logical_or.accumulate(read, 1)[::-1], 0)[::-1]
    return int(np.sum(beyond & before))


@examples(400)
@given(table=oracles.tap_tables(), data=st.data())
def test_bands_hold_exactly_what_the_taps_add_up_to_and_are_widened_by_the_least(table, data):
    outputs = len(table.index)
    cuts = sorted(data.draw(st.lists(st.integers(0, outputs), max_size=4)))
    blocks = [
        (table.index[low:high], table.weight[low:high])
        for low, high in itertools.pairwise([0, *cuts, outputs])
    ]
    with np.errstate(all="ignore"):
        matrix, bands = table.dense(), table.map()
        oracles.assert_same_map(BandedMap.from_blocks(blocks, inputs=table.inputs), bands)
    np.testing.assert_array_equal(bands.dense(), matrix)
    oracles.assert_same_map(bands.adjoint().adjoint(), bands)
    up, down = columns_between(matrix), columns_between(matrix[::-1])
    assert bands.nnz == min(up, down)
    assert bands.is_increasing or down < up


def test_a_band_runs_from_the_first_to_the_last_weight_and_keeps_the_zeros_between():
    taps = np.arange(6)[np.newaxis], np.array([[0, 2, 0, -0.0, 3, 0]])
    bands = BandedMap.from_blocks([taps], inputs=6)
    assert (bands.start.tolist(), bands.stop.tolist()) == ([1], [5])
    oracles.same_bits(bands.weight, np.array([2, 0, -0.0, 3]))


def test_identities_are_left_out_and_passes_ascend():
    identity = BandedMap.from_blocks([(np.arange(3)[:, None], np.ones((3, 1)))], inputs=3)
    plan = Plan.build([linear(2, 4), identity, None, linear(5, 3)], (2, 3, 9, 5))
    assert [one.axis for one in plan.passes] == [0, 3]
    assert plan.output_shape == (4, 3, 9, 3)


def test_costs_are_exact_beyond_any_machine_integer():
    up, down = linear(2, 4), linear(4, 1)
    plan = Plan.build([None, up, down], (2**70, 2, 4))
    assert (up.nnz, down.nnz) == (6, 2)
    assert plan.work == 2**70 * 4 * up.nnz + 2**70 * 4 * down.nnz
    assert plan.largest_intermediate == 2**70 * 4 * 4
    assert plan.table_entries == (6 + 4 + 2) + (2 + 1 + 4)
    copy = Plan.build([None, None], (3, 4))
    assert (copy.work, copy.largest_intermediate, copy.table_entries) == (0, 0, 0)


@given(data=st.data(), plan=oracles.plans())
def test_a_permuted_plan_does_the_same_to_the_permuted_tensor(data, plan):
    order = data.draw(st.permutations(range(len(plan.input_shape))))
    x = data.draw(oracles.tensors(plan.input_shape, dtype=np.float32))
    stored = plan.permuted(order)
    assert [one.map for one in stored.passes] == [one.map for one in plan.passes]
    result = applied(NumpyCpu(), stored, x.transpose(order), np.float32)
    oracles.same_bits(result, applied(NumpyCpu(), plan, x, np.float32).transpose(order))


def test_a_map_that_does_not_fit_the_shape_is_refused():
    message = r"the map of axis 0 reads 2 inputs; the tensor is \[3, 7\] there"
    with pytest.raises(ValueError, match=message):
        Plan((3, 7), (Pass(0, linear(2, 4)),))


def test_a_digest_is_fed_all_of_a_plan_and_the_same_bytes_everywhere():
    bands = BandedMap(1, 2, np.array([0]), np.array([0, 2]), np.array([0.5, -3]))
    plan = Plan.build([bands, None, bands], (2, 5, 2), fill=-0.0)
    head = struct.pack("<4q4qdq", 3, 2, 5, 2, 3, 1, 5, 1, -0.0, 2)
    table = struct.pack("<q2q2d", 0, 0, 2, 0.5, -3)
    passes = (struct.pack("<4q", axis, 1, 2, 2) + table for axis in (0, 2))
    expected = b"".join((head, *passes))
    for one in (plan, pickle.loads(pickle.dumps(plan))):  # noqa: S301
        fed = []
        one.digest_update(SimpleNamespace(update=lambda data, to=fed: to.append(bytes(data))))
        assert b"".join(fed) == expected


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


def exact_sine(x):
    """Sum the series until its terms are below 2**-300 of what matters here."""
    square, total = Fraction(x) ** 2, Fraction(0)
    term, power = Fraction(x), 1
    while abs(term) > Fraction(1, 2**300):
        total += term
        term = -term * square / ((power + 1) * (power + 2))
        # Long fractions cost time, and bits beyond these change nothing.
        term = Fraction(round(term * 2**340), 2**340)
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
