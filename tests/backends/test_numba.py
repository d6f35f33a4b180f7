"""The compiled backend has NumPy's bits by whatever way it goes, on any number of threads.

It keeps to its memory, and its helper threads end with it.
"""

import ctypes
import gc
import platform
import re
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import BindsArrays, NumpyCpu, TellsHeldBytes, compute_dtype
from gradwire_server.plans import Plan
from support.examples import examples
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied, in_pieces
from support.kernels.kernel_table import SPECIALS, cases, check, numbers, some_formats
from support.kernels.numba_calls import (
    assembly,
    check_all,
    check_case,
    check_conversions,
    check_ways,
    compiled,
    fused,
    needs_numba,
    run_program,
    small_shares,
    streaming,
)
from support.oracles import oracles
from support.raw_calls import wait_until

pytestmark = needs_numba


# Around the widths of vectors, blocks and tiles.
LENGTHS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 128, 131, 200, 256, 300]
_STILL = [1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 33, 40]
_KINDS = [maps.linear, maps.cubic, maps.nearest, maps.area, maps.corners]
_GENERATORS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def sampled(draw, inputs, most):
    """Draw a resampling or its gradient, at scales that are whole and others."""
    sides = {inputs * 2, inputs // 2, inputs * 8, inputs // 8, inputs * 3 // 2, inputs * 5 // 7}
    sides |= {inputs, draw(st.integers(1, most))}
    outputs = draw(st.sampled_from(sorted(side for side in sides if 0 < side <= most)))
    kind = draw(st.sampled_from(_KINDS))
    return kind(outputs, inputs).adjoint() if draw(st.booleans()) else kind(inputs, outputs)


@st.composite
def stepped(draw, inputs, most):
    """Draw bands that advance steadily and may all be empty."""
    step = draw(st.sampled_from([0.25, 1 / 3, 0.5, 1, 2, 2, 3, 8]))
    about = max(1, min(most, int(inputs / step)))
    outputs = draw(st.sampled_from([about, max(1, about - 1), min(most, about + 3)]))
    fewest = draw(st.integers(0, 7))
    more = {0.25: 0, 1 / 3: 0, 0.5: 1}.get(step, int(step))
    taps = [fewest, fewest + draw(st.integers(0, more))]
    shift = draw(st.integers(-3, 3))
    return maps.stepped(inputs, outputs, step=step, taps=taps, weights=[1.0], shift=shift)


@st.composite
def scattered(draw, inputs, most):
    """Draw bands anywhere, narrow ones or wide ones."""
    rng = draw(_GENERATORS)
    outputs = draw(st.integers(1, most))
    widest = draw(st.sampled_from([0, 1, 2, 5, 30, inputs]))
    # As many weights as 300 inputs and outputs could have.
    return maps.scattered(rng, inputs, outputs, widest=min(widest, 1 + 90_000 // outputs))


@st.composite
def any_bands(draw, inputs, most):
    """Draw maps of so many inputs and at most so many outputs, of any pattern and weights."""
    pattern = draw(st.sampled_from([sampled, sampled, sampled, stepped, stepped, scattered]))
    found = draw(pattern(inputs, most))
    weights = draw(st.sampled_from(["own", "own", "ones", "alike", "phased", "awkward", "any"]))
    rng, count = draw(_GENERATORS), max(1, found.nnz)
    if weights == "phased":
        found = maps.rephased(rng, found, period=draw(st.integers(1, 4)))
    elif weights != "own":
        new = {"ones": 1.0, "alike": rng.standard_normal(), "any": rng.standard_normal(count)}
        new["awkward"] = rng.choice(oracles.WEIGHTS, count)
        found = maps.reweighted(found, new[weights])
    if draw(st.integers(0, 4)) == 0:
        share = draw(st.sampled_from([0.1, 0.5, 0.95]))
        found = maps.thinned(found, rng.random(found.outputs) < share)
    return maps.backwards(found) if draw(st.integers(0, 5)) == 0 else found


@st.composite
def any_plans(draw):
    """Draw one to six axes, one to four of them with a pass; tensors have at most 120 000 numbers.

    In half of them the last axis is a long one with a pass.
    """
    rank, has_long_rows = draw(st.integers(1, 6)), draw(st.booleans())
    order = draw(st.permutations(range(rank)))
    if has_long_rows:
        order = [rank - 1, *(axis for axis in order if axis != rank - 1)]
    moving = order[: draw(st.integers(1, min(4, rank)))]
    left, shape, passes = 120_000, [1] * rank, [None] * rank
    for axis in order:
        lengths = LENGTHS if axis in moving else _STILL
        if has_long_rows and axis == rank - 1:
            lengths = [130, 200, 256, 300, 512, 777, 1030, 2050]
        length = draw(st.sampled_from([one for one in lengths if one <= left]))
        found = draw(any_bands(length, min(left, 8 * length + 8))) if axis in moving else None
        shape[axis], passes[axis] = length, found
        left //= length if found is None else max(length, found.outputs)
    return Plan.build(passes, tuple(shape), fill=draw(st.sampled_from([0.0, 0.0, -0.0, -1.5])))


@st.composite
def any_tensors(draw, shape, dtype):
    """Draw any strides: ordinary numbers, with or without special ones, or those alone."""
    rng = draw(_GENERATORS)
    ordinary = rng.standard_normal(1000) * 2.0 ** rng.integers(-12, 12, 1000)
    finite = SPECIALS[np.isfinite(SPECIALS)]
    both = np.concatenate([ordinary, SPECIALS])
    values = draw(st.sampled_from([ordinary, both, finite, SPECIALS]))
    with np.errstate(all="ignore"):
        held = values.astype(dtype).astype(np.float64).tolist()
    return draw(oracles.tensors(shape, dtype=dtype, values=held))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_listed_case_has_the_bits_of_numpy(case):
    check_case(compiled(1), case)


def test_a_plan_bound_to_its_arrays_reads_them_anew_with_the_bits_of_numpy():
    backend = compiled(1)
    assert isinstance(backend, BindsArrays)
    rows = [(case, formats) for case in cases()[::3] for formats in some_formats(case)]
    for case, (arriving, leaving) in rows:
        x, y = np.zeros(case.plan.input_shape, arriving), np.empty(case.plan.output_shape, leaving)
        run = backend.bound(case.plan, x, y)
        run()
        x[...] = numbers(case, arriving, special=False)
        run()
        oracles.same_bits(y, applied(NumpyCpu(), case.plan, x, leaving))


@pytest.mark.parametrize("threads", [1, 2])
def test_results_written_past_the_caches_have_the_bits_of_numpy(threads):
    with small_shares(), streaming(threads) as backend:
        check_all(backend)


@given(
    before=st.integers(0, 80), rows=st.integers(1, 40), width=st.integers(1, 300), data=st.data()
)
def test_results_written_past_the_caches_may_stand_anywhere(before, rows, width, data):
    dtype = np.dtype(data.draw(st.sampled_from(oracles.STORAGE_TYPES)))
    plan = Plan.build([None, maps.linear(width, 2 * width + 1)], (rows, width))
    x = data.draw(any_tensors((rows, width), dtype))
    expected = applied(NumpyCpu(), plan, x, dtype)
    memory = np.full(before + expected.nbytes + 80, 0xA5, np.uint8)
    left, y, right = np.split(memory, [before, before + expected.nbytes])
    y = y.view(dtype).reshape(expected.shape)
    with streaming(1) as backend:
        backend.apply(plan, x, y)
    oracles.same_bits(y, expected)
    assert (left == 0xA5).all()
    assert (right == 0xA5).all()


def test_sixteen_bit_numbers_come_in_exactly_and_go_out_rounded_to_nearest_even():
    check_conversions(compiled(1))


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES)
def test_numbers_may_stand_anywhere_in_memory(dtype):
    for case in cases()[::9]:
        x = numbers(case, dtype, special=True)
        memory = np.empty(x.nbytes + 1, np.uint8)
        moved = memory[1:].view(dtype).reshape(x.shape)
        moved[...] = x
        assert not moved.flags.aligned or dtype.alignment == 1
        check(compiled(1), case.plan, moved, dtype)


@examples(150)
@given(
    data=st.data(),
    length=st.sampled_from(LENGTHS),
    outer=st.integers(1, 3),
    inner=st.integers(1, 140),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
)
def test_inputs_accumulated_in_any_pieces_have_the_bits_of_numpy(data, length, outer, inner, dtype):
    bands = data.draw(any_bands(length, 300).filter(lambda one: one.is_increasing))
    x = data.draw(any_tensors((outer, length, inner), dtype))
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    expected = np.empty((outer, bands.outputs, inner), dtype)
    NumpyCpu().accumulate(bands, x, expected, axis=1, carried=0)
    oracles.same_bits(in_pieces(compiled(1), bands, x, cuts), expected)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_repeated_slices_have_the_bits_of_copies(case):
    choices = list(product([False, True], repeat=len(case.plan.input_shape)))
    first = zlib.crc32(case.name.encode())
    for number, (arriving, leaving) in enumerate(some_formats(case)):
        whole = numbers(case, arriving, special=True)
        some = choices[(first + 7 * number) % len(choices)]
        for repeated in (some, choices[len(choices) // 2], choices[-1]):
            once = whole[tuple(slice(1) if again else slice(None) for again in repeated)]
            check(compiled(1), case.plan, np.broadcast_to(once, whole.shape), leaving)


@pytest.mark.slow
@pytest.mark.parametrize(
    "checks",
    [
        "check_guarded_cases(compiled(1)); check_guarded_sums()",
        pytest.param(
            "with streaming(1) as backend: check_guarded_cases(backend)", marks=pytest.mark.heavy
        ),
    ],
)
def test_nothing_before_or_beyond_a_tensor_is_read_or_written(checks):
    done = run_program(f"from support.kernels.numba_calls import *\n{checks}")
    assert done.returncode == 0, done.stderr


def test_the_last_block_of_a_plane_reads_no_other_plane():
    """It once read before its buffer, by the length of a plane."""
    program = """
import numpy as np
from gradwire import ops
from gradwire_server import LocalClient
operator = ops.Interpolate(mode="nearest", sizes=(4, 10001, 12), data_format="NCX")
x = np.arange(3 * 20000 * 96, dtype=np.float32).reshape(1, 1, 3, 20000, 96)
compiled, plain = (
    LocalClient(name, threads=2).evaluate(operator, x) for name in ("numba_cpu", "numpy_cpu")
)
assert compiled.tobytes() == plain.tobytes()
"""
    done = run_program(program)
    assert done.returncode == 0, done.stderr


CHECK = """
from support.kernels.numba_calls import *
from gradwire_server.backends.numba_cpu.vectors import FEATURES

check_all(compiled(2))
with streaming(2) as backend:
    check_all(backend)
check_guarded_sums()
found = assembly().values()
assert found and not any(map(fused, found))
print(*(feature.strip("+") for feature in FEATURES))
"""


def _has(features):
    if platform.machine() != "x86_64":
        return not features
    flags = re.findall(r"^flags.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0]
    return set(features.split()) <= set(flags.split())


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processor", "told", "present", "missing"),
    [
        ("generic", "", "", "avx f16c fma avx512f"),
        ("haswell", "+avx,+avx2,+f16c,+fma,+sse4.2", "avx2 f16c fma", "avx512f"),
    ],
)
def test_code_for_other_processors_has_the_bits_of_numpy(processor, told, present, missing):
    """Lesser ones that numba can be told to compile for, by features that they have and not."""
    if not _has(present):
        pytest.skip(f"this processor lacks one of {present}")
    done = run_program(CHECK, env={"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": told})
    assert done.returncode == 0, done.stderr
    features = set(done.stdout.split())
    assert features >= set(present.split())
    assert features.isdisjoint(missing.split())


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instructions of x86-64")
def test_compiled_code_rounds_products_and_fences_lines_written_past_the_caches():
    found = assembly()
    assert any("mulps" in text and "addps" in text for text in found.values())
    assert not any(map(fused, found.values()))
    assert "movnt" in found["rows.stream"]
    assert re.search(r"mfence|lock\s+or", found["blocks.run"])


@examples(300)
@given(data=st.data(), plan=any_plans(), dtype=st.sampled_from(oracles.STORAGE_TYPES))
@small_shares()
def test_any_plan_has_the_bits_of_numpy_on_any_number_of_threads(data, plan, dtype):
    types = st.sampled_from([dtype, compute_dtype(dtype)])
    x = data.draw(any_tensors(plan.input_shape, data.draw(types)))
    check(compiled(data.draw(st.sampled_from([1, 2, 3]))), plan, x, data.draw(types))


@pytest.mark.parametrize("threads", [2, 4])
@small_shares()
def test_calls_on_many_threads_at_once_do_not_disturb_each_other(threads):
    backend, _ = backends.choose("numba_cpu", threads=threads)
    half = np.dtype(np.float16)
    some = [(case.plan, numbers(case, half, special=True)) for case in cases()[::7]]
    expected = [applied(NumpyCpu(), plan, x, half) for plan, x in some]
    places = np.random.default_rng(7).integers(0, len(some), 4 * len(some)).tolist()

    def check_one(at):
        oracles.same_bits(applied(backend, *some[at], half), expected[at])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check_one, places))
    # The head of the team's memory: how many threads no call has taken.
    assert ctypes.c_int64.from_address(vars(backend)["_team"].address).value == threads


def test_threads_that_begin_with_the_same_plan_at_once_do_not_disturb_each_other():
    backend, _ = backends.choose("numba_cpu", threads=1)
    x = np.random.default_rng(8).standard_normal((3, 2000)).astype(np.float32)
    start, bands = threading.Barrier(6), maps.cubic(2000, 2667)
    expected = applied(NumpyCpu(), Plan.build([None, bands], x.shape), x, np.float32)

    def prepare_and_apply(plan):
        start.wait()
        for _ in range(3):
            oracles.same_bits(applied(backend, plan, x, np.float32), expected)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for _ in range(60):
                # The map is a new one each time: what is prepared is kept with it.
                plan = Plan.build([None, maps.cubic(2000, 2667)], x.shape)
                list(pool.map(prepare_and_apply, [plan] * 6))
    finally:
        sys.setswitchinterval(before)


FORK = """
import os, signal, threading
from support.kernels.numba_calls import *

plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
x = np.random.default_rng(9).standard_normal(plan.input_shape).astype(np.float32)
backend, _ = backends.choose("numba_cpu", threads=3)

def go_on():
    while not over.is_set():
        check(backend, plan, x, np.float32)

over = threading.Event()
others = [threading.Thread(target=go_on) for _ in range(2)]
children = []
with small_shares():
    for one in others:
        one.start()
    for _ in range(5):
        check(backend, plan, x, np.float32)
        children.append(os.fork())
        if not children[-1]:
            signal.alarm(60)
            assert threading.active_count() == 1
            check(backend, plan, x, np.float32)
            assert threading.active_count() > 1
            os._exit(0)
    over.set()
    for one in others:
        one.join()
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_a_process_forked_off_amid_calls_computes_with_threads_of_its_own():
    done = run_program(FORK)
    assert (done.returncode, done.stdout) == (0, "0 0 0 0 0\n"), done.stderr


LATE = """
import random, time
from support.kernels.numba_calls import *

backend = compiled(3)
for number in range(300):
    # A row takes longer than the caller takes to shut the memory.
    plan = Plan.build([None, maps.cubic(1 << 13, 1 << 14)], (2 + number % 11, 1 << 13))
    task, scratch, x, y = places = [GuardedMemory(1 << 20) for _ in range(4)]
    task_at = task.array([192], np.uint8, at_end=True).ctypes.data
    vars(backend)["_scratch"] = guarded_scratch(task_at, scratch, at_end=True)
    with small_shares():
        backend.apply(
            plan,
            x.array(plan.input_shape, np.float32, at_end=True),
            y.array(plan.output_shape, np.float32, at_end=True),
        )
    for one in places:
        one.shut()
    if number % 4 == 0:
        time.sleep(random.random() / 1000)
"""


@pytest.mark.slow
def test_no_helper_touches_what_belongs_to_a_call_that_has_returned():
    done = run_program(LATE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 3])
@small_shares()
def test_helpers_are_one_less_than_threads_and_end_with_their_backend(threads):
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    gc.collect()
    files = Path("/proc/self/fd")
    before, open_before = set(threading.enumerate()), len(list(files.iterdir()))
    for _ in range(3):
        backend, _ = backends.choose("numba_cpu", threads=threads)
        check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
        assert len(set(threading.enumerate()) - before) == threads - 1
        del backend
        gc.collect()
        wait_until(lambda: set(threading.enumerate()) <= before)
    assert len(list(files.iterdir())) == open_before


@small_shares()
def test_without_more_threads_a_call_computes_alone(monkeypatch):
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refused)
    backend, _ = backends.choose("numba_cpu", threads=3)
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
    assert refused.called


EXIT = """
import atexit, threading, time

@atexit.register  # before the backend does: it runs afterwards
def tell():
    print(*(one.name for one in threading.enumerate()))

from support.kernels.numba_calls import *

plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
x = np.zeros(plan.input_shape, np.float32)
backend, _ = backends.choose("numba_cpu", threads=4)
gone, _ = backends.choose("numba_cpu", threads=2)
with small_shares():
    applied(gone, plan, x, np.float32)
    del gone
    applied(backend, plan, x, np.float32)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_helpers_end_before_the_process_whether_they_sleep_or_not(pause_s):
    done = run_program(EXIT, pause_s)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr


def test_only_a_row_is_held_of_an_input_that_repeats_it():
    plan = Plan.build([maps.linear(2048, 64), maps.linear(1024, 32)], (2048, 1024))
    backend, y = compiled(1), np.empty(plan.output_shape, np.float32)
    assert isinstance(backend, TellsHeldBytes)
    for shape, held in (((1024,), 0), ((1,), 4 << 10), ((2048, 1), 4 << 21)):
        x = np.broadcast_to(np.zeros(shape, np.float32), plan.input_shape)
        assert backend.held_bytes(plan, x, y) == held
    assert not isinstance(NumpyCpu(), TellsHeldBytes)


def test_the_listed_cases_go_every_way():
    check_ways()
