"""Every backend against scalar loops, bit for bit, and against dense matrices.

The bits are the same where other code has set the thread's flush-to-zero or rounding direction.
"""

import ctypes
import platform
import threading
import tracemalloc
from contextlib import contextmanager, suppress
from functools import cache, reduce
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import NumpyCpu, compute_dtype
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.float_environment import default_float_environment, is_default
from gradwire_server.plans import BandedMap, Plan
from support.examples import examples
from support.kernels.backend_calls import applied, in_pieces
from support.kernels.cuda_device import simulated
from support.kernels.cuda_table import needs_simulator
from support.kernels.numba_calls import needs_numba, small_shares
from support.oracles import oracles
from support.oracles.dialect_oracles import lowered
from support.oracles.dialect_tables import EXAMPLES


@pytest.fixture(
    scope="module",
    params=[
        "numpy_cpu",
        pytest.param("numba_cpu", marks=needs_numba),
        pytest.param("cuda", marks=needs_simulator),
    ],
)
def backend(request):
    if request.param == "cuda":
        return Cuda(simulated(), memory_bytes=1 << 30, buffer_bytes=1 << 16)
    chosen, _ = backends.choose(request.param)
    chosen.warm_up()
    return chosen


def test_float64_is_computed_in_float64_and_the_rest_in_float32():
    kinds = [compute_dtype(dtype) for dtype in oracles.STORAGE_TYPES]
    assert kinds == [np.float32, np.float32, np.float32, np.float64]


@examples(400)
@given(data=st.data(), plan=oracles.plans(), dtype=st.sampled_from(oracles.STORAGE_TYPES))
def test_any_plan_on_any_strides_gives_the_bits_of_the_scalar_loop(backend, data, plan, dtype):
    arriving, leaving = (
        data.draw(st.sampled_from([dtype, compute_dtype(dtype)])) for _ in range(2)
    )
    x = data.draw(oracles.tensors(plan.input_shape, dtype=arriving))
    oracles.same_bits(applied(backend, plan, x, leaving), oracles.scalar_apply(plan, x, leaving))


@examples(100)
@given(
    data=st.data(),
    bands=oracles.banded_maps(inputs=12, most=24, ascending=True),
    shape=st.tuples(st.integers(1, 3), st.just(12), st.integers(1, 3)),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
)
def test_inputs_arriving_in_any_pieces_give_the_bits_of_all_at_once(
    backend, data, bands, shape, dtype
):
    x = data.draw(oracles.tensors(shape, dtype=dtype))
    cuts = sorted({0, 12, *data.draw(st.lists(st.integers(1, 11)))})
    plan = Plan.build([None, bands, None], shape)
    pieces = in_pieces(backend, bands, x, cuts, gap=data.draw(st.integers(1, 2)))
    oracles.same_bits(pieces, applied(backend, plan, x, dtype))


@pytest.mark.parametrize(("inner", "gap"), [(3, 1), (3, 2), (16, 1), (37, 1), (130, 1)])
def test_many_sums_may_be_open_where_the_input_is_cut(backend, inner, gap):
    x = np.random.default_rng(3).normal(size=(2, 97, inner)).astype(np.float32)
    bands = oracles.cubic_taps(29, 97).map().adjoint()
    whole = applied(backend, Plan.build([None, bands, None], x.shape), x, np.float32)
    for cut in range(1, 97):
        oracles.same_bits(in_pieces(backend, bands, x, [0, cut, 97], gap=gap), whole)


def _in_turn(bands, x):
    """Add taps of rows [inputs, inner] in turn, vectorized over the inner axis alone."""
    rows = []
    for start, (first, stop) in zip(bands.start, pairwise(bands.offset), strict=True):
        weights = bands.weight[first:stop].astype(x.dtype)
        terms = (weight * x[start + tap] for tap, weight in enumerate(weights))
        rows.append(reduce(np.add, terms))
    return np.stack(rows)


def _check_in_turn(backend, counts, start, inner):
    """Compare bands of so many taps; return the second result, and NumPy's own sum of its terms."""
    rng, offset = np.random.default_rng(1), np.concatenate([[0], np.cumsum(counts)])
    inputs = int((start + counts).max())
    bands = BandedMap(len(counts), inputs, start, offset, rng.normal(size=int(offset[-1])))
    x = rng.normal(size=(inputs, inner)).astype(np.float32)
    result = applied(backend, Plan.build([bands, None], x.shape), x, np.float32)
    oracles.same_bits(result, _in_turn(bands, x))
    weights = bands.weight[offset[1] : offset[2]].astype(np.float32)
    return result[1, 0], np.add.reduce(weights * x[start[1] : start[1] + counts[1], 0])


@pytest.mark.parametrize("inner", [1, 300])
def test_a_few_long_bands_among_short_ones_are_still_added_in_turn(backend, inner):
    counts = np.array([1, 2500, 2, 3000, 1, 1])
    start = np.array([0, 0, 2499, 2500, 5500, 5501])
    in_turn, summed = _check_in_turn(backend, counts, start, inner)
    assert in_turn != summed


def test_bands_of_every_length_are_added_in_turn(backend):
    counts = np.arange(1, 60)[np.random.default_rng(2).permutation(59)]
    _check_in_turn(backend, counts, np.cumsum(counts) - counts, inner=2)


@examples(100)
@given(data=st.data(), plan=oracles.plans())
def test_a_gradient_is_adjoint_to_its_forward_and_both_are_the_dense_maps(backend, data, plan):
    plan = Plan(plan.input_shape, plan.passes)
    numbers = [-2.0, -0.5, 0.25, 1.0, 3.0]
    x = data.draw(oracles.tensors(plan.input_shape, dtype=np.float64, values=numbers))
    g = data.draw(oracles.tensors(plan.output_shape, dtype=np.float64, values=numbers))
    forward = applied(backend, plan, x, np.float64)
    backward = applied(backend, oracles.adjoint(plan), g, np.float64)
    matrices = {one.axis: one.map.dense() for one in plan.passes}
    transposes = {axis: matrix.T for axis, matrix in matrices.items()}
    sizes = {axis: np.abs(matrix) for axis, matrix in matrices.items()}
    bound = 1e-13 * float(np.sum(oracles.dense_apply(sizes, np.abs(x)) * np.abs(g)))
    assert abs(float(np.sum(forward * g) - np.sum(x * backward))) <= bound
    for result, dense, matrix, source in (
        (forward, matrices, sizes, x),
        (backward, transposes, {axis: size.T for axis, size in sizes.items()}, g),
    ):
        error = np.abs(result - oracles.dense_apply(dense, source))
        assert (error <= 1e-14 * oracles.dense_apply(matrix, np.abs(source))).all()


@pytest.mark.parametrize("channels", [0, 1, 3, 20])
def test_empty_slabs_are_no_special_case(backend, channels):
    up = oracles.linear_taps(4, 8).map()
    none_of_none, none_of_two = up.window(3, 3, 1, 1), up.window(3, 3, 1, 3)
    for shape, moving in (
        ((0, 5), [none_of_none, None]),
        ((0, 4), [None, up]),
        ((5, 0), [None, none_of_none]),
        ((2, 5), [none_of_two, None]),
        ((5, 2), [None, none_of_two]),
        ((4, 2), [up, none_of_two]),
        ((2, 4), [none_of_two, up]),
        ((4, 2, 4), [up, none_of_two, up]),
        ((2, 4, 4), [none_of_two, up, up]),
        ((4, 3, 2), [up, None, none_of_two]),
    ):
        plan = Plan.build([*moving, None], (*shape, channels))
        x = np.ones(plan.input_shape, np.float32)
        assert not applied(backend, plan, x, np.float32).size


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_outputs_of_no_inputs_are_fill(backend, channels):
    nothing = BandedMap(3, 0, np.zeros(3, np.int64), np.zeros(4, np.int64), np.zeros(0))
    for maps, shape in (([nothing], (0,)), ([None, nothing], (4, 0)), ([nothing] * 2, (0, 0))):
        plan = Plan.build([*maps, None], (*shape, channels), fill=2.5)
        result = applied(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
        assert result.size
        assert (result == 2.5).all()


def _traced(backend, plan, x):
    """Return a result and the most memory that was in use for it."""
    tracemalloc.start()
    try:
        return applied(backend, plan, x, np.float32), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1 << 21,), (1 << 11, 1 << 10), (1, 1 << 20, 2)])
def test_memory_is_in_proportion_to_what_goes_in_and_comes_out(backend, shape):
    bands = [oracles.linear_taps(size // 2, size).map() if size > 2 else None for size in shape]
    plan = Plan.build(bands, tuple(max(1, size // 2) if size > 2 else size for size in shape))
    x = np.ones(plan.output_shape, np.float32)
    adjoint = oracles.adjoint(plan)
    _, peak = _traced(backend, adjoint, x)
    assert peak < 3 * x.nbytes + 40 * adjoint.table_entries


def test_a_long_band_is_added_in_memory_that_does_not_grow_with_it(backend):
    x = np.ones((2048, 2048), np.float32)
    index = np.arange(2048)[np.newaxis]
    bands = BandedMap.from_blocks([(index, np.full((1, 2048), 0.5))], inputs=2048)
    plan = Plan.build([bands, None], x.shape)
    result, peak = _traced(backend, plan, x)
    assert (result == 1024).all()
    assert peak < x.nbytes / 4


@pytest.mark.parametrize(
    ("dtype", "ulp"), [(np.dtype(np.float16), 2**-10), (np.dtype(ml_dtypes.bfloat16), 2**-7)]
)
def test_the_one_rounding_goes_to_the_nearest_and_ties_to_even(backend, dtype, ulp):
    sums = {1 + ulp / 2: 1, 1 + 1.5 * ulp: 1 + 2 * ulp, 1 + ulp / 2 + 2**-23: 1 + ulp}
    for exact, rounded in sums.items():
        index = np.array([[0, 1]])
        bands = BandedMap.from_blocks([(index, np.array([[1, exact - 1]]))], inputs=2)
        result = applied(backend, Plan.build([bands], (2,)), np.ones(2, dtype), dtype)
        assert result.astype(np.float64) == [rounded]


@cache
def _looped(name, dtype):
    example = EXAMPLES[name]
    plan = lowered(example.operator, example.source, example.result, dtype)
    x = example.given(dtype)
    return plan, x, oracles.scalar_apply(plan, x, dtype)


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES, ids=str)
@pytest.mark.parametrize("example", EXAMPLES, ids=list(EXAMPLES))
def test_an_example_has_the_bits_of_the_scalar_loop(backend, example, dtype):
    plan, x, looped = _looped(example, dtype)
    oracles.same_bits(applied(backend, plan, x, dtype), looped)


@examples(200)
@given(data=st.data(), plan=oracles.plans(), special=st.sampled_from([np.inf, -np.inf, np.nan]))
def test_an_infinity_or_nan_reaches_the_results_whose_band_covers_it_and_no_other(
    backend, data, plan, special
):
    x = np.zeros(plan.input_shape)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)
    x[place] = special
    reached = np.zeros(plan.input_shape)
    reached[place] = 1
    bands = {one.axis: oracles.covered(one.map).astype(np.float64) for one in plan.passes}
    expected = oracles.dense_apply(bands, reached) == 1
    result = applied(backend, plan, x, np.float64)
    np.testing.assert_array_equal(~np.isfinite(result), expected)


@pytest.mark.parametrize("size", [8, 160, 400])
def test_weights_that_are_zeros_of_both_signs_by_turns_keep_their_signs(backend, size):
    taps = np.tile([1, 0.0, 1, 1, -0.0, 1], size // 2)
    start, offset = 2 * np.arange(size), 3 * np.arange(size + 1)
    bands = BandedMap(size, 2 * size + 1, start, offset, taps)
    x = np.full((4, bands.inputs), -0.0, np.float32)
    x[:, 1::2] = 5
    result = applied(backend, Plan.build([None, bands], x.shape), x, np.float32)
    oracles.same_bits(result, np.tile(np.array([0.0, -0.0], np.float32), (4, size // 2)))


@pytest.mark.parametrize("fill", [0.0, -0.0, 2.5, np.inf])
def test_an_element_without_taps_on_any_axis_is_exactly_fill(backend, fill):
    index, weight = np.array([[0], [0], [1]]), np.array([[-1.0], [0], [-1]])
    gap = BandedMap.from_blocks([(index, weight)], inputs=2)
    x = np.array([[1, np.nan], [np.inf, 4]], np.float32)
    result = applied(backend, Plan.build([gap, gap], (2, 2), fill=fill), x, np.float32)
    expected = [[1, fill, np.nan], [fill, fill, fill], [np.inf, fill, 4]]
    oracles.same_bits(result, np.array(expected, np.float32))


# Flush-to-zero, denormals-are-zero and rounding directions set by someone else in the thread.
needs_mxcsr = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="sets MXCSR through glibc's fenv_t of x86-64",
)
DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, UPWARD, TO_ZERO = 0x40, 0x8000, 0x4000, 0x6000
# Where MXCSR lies in glibc's fenv_t on x86-64, whose last member it is.
_MXCSR = 28


@contextmanager
def mxcsr(bits):
    libm = ctypes.CDLL("libm.so.6")
    before = ctypes.create_string_buffer(32)
    assert libm.fegetenv(before) == 0
    others, register = before.raw[:_MXCSR], int.from_bytes(before.raw[_MXCSR:], "little")
    libm.fesetenv(others + (register | bits).to_bytes(4, "little"))
    try:
        yield
    finally:
        libm.fesetenv(before)


def _halved(backend):
    half = BandedMap.from_blocks([(np.array([[0], [1]]), np.full((2, 1), 0.5))], inputs=2)
    x = np.array([2.0**-126, 2.0**-148], np.float32)
    return applied(backend, Plan.build([half], (2,)), x, np.float32)


@needs_mxcsr
@pytest.mark.parametrize(
    "bits", [DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, DENORMALS_ARE_ZERO | FLUSH_TO_ZERO]
)
def test_denormals_survive_a_thread_that_flushes_them(backend, bits):
    with mxcsr(bits):
        flushed = _halved(backend)
        with default_float_environment():
            kept = _halved(backend)
        again = _halved(backend)
    oracles.same_bits(kept, np.array([2.0**-127, 2.0**-149], np.float32))
    # The caller's thread does not set the environment of a device or of another process.
    assert backend.may_wait or (flushed == 0).any()
    oracles.same_bits(again, flushed)


@needs_mxcsr
@needs_numba
@pytest.mark.parametrize("bits", [DENORMALS_ARE_ZERO | FLUSH_TO_ZERO, UPWARD])
def test_threads_of_a_backend_do_not_inherit_the_environment_they_were_started_in(bits):
    backend, _ = backends.choose("numba_cpu", threads=3)
    backend.warm_up()
    values = np.array([2.0**-126, 2.0**-148, 1 / 3, -0.7], np.float32)
    x = np.random.default_rng(0).choice(values, (512, 256))
    plan = Plan.build([None, oracles.linear_taps(256, 512).map()], x.shape)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    with small_shares():
        with mxcsr(bits):
            applied(backend, plan, x, np.float32)
        assert any(one.name.startswith("gradwire-kernel") for one in threading.enumerate())
        for _ in range(50):
            oracles.same_bits(applied(backend, plan, x, np.float32), expected)


@needs_mxcsr
@pytest.mark.parametrize("bits", [FLUSH_TO_ZERO, UPWARD, TO_ZERO])
def test_a_thread_gets_its_environment_back_after_an_error(bits):
    assert is_default()
    with mxcsr(bits):
        with suppress(KeyError), default_float_environment():
            assert is_default()
            raise KeyError
        assert not is_default()
    assert is_default()
