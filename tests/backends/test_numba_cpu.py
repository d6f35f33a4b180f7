"""The compiled backend has NumPy's bits by whatever way it goes, and keeps to its memory."""

import platform
import re
import signal
import threading
import zlib
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import assembly
from gradwire_server import backends
from gradwire_server.backends import BindsArrays, NumpyCpu, TellsHeldBytes
from gradwire_server.plans import Plan
from support.examples import examples
from support.kernels import kernel_maps as maps
from support.kernels import kernel_plans, numba_calls
from support.kernels.backend_calls import in_pieces
from support.kernels.kernel_table import cases, check, numbers, some_formats
from support.kernels.numba_calls import compiled, needs_numba, run_program, small_shares, streaming
from support.oracles import oracles

pytestmark = needs_numba


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_listed_case_has_the_bits_of_numpy(case):
    numba_calls.check_case(compiled(1), case)


def test_a_plan_bound_to_its_arrays_reads_them_anew_with_the_bits_of_numpy():
    backend = compiled(1)
    assert isinstance(backend, BindsArrays)
    rows = [(case, formats) for case in cases()[::3] for formats in some_formats(case)]
    for case, (arriving, leaving) in rows:
        x, y = np.zeros(case.plan.input_shape, arriving), np.empty(case.plan.output_shape, leaving)
        run = backend.bound(case.plan, x, y)
        run()
        x[...] = numbers(case, arriving, special=False)
        expected = np.empty_like(y)
        NumpyCpu().apply(case.plan, x, expected)
        run()
        oracles.same_bits(y, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_written_past_the_caches_have_the_bits_of_numpy(threads):
    with small_shares(), streaming(threads) as backend:
        numba_calls.check_all(backend)


@given(
    before=st.integers(0, 80), rows=st.integers(1, 40), width=st.integers(1, 300), data=st.data()
)
def test_results_written_past_the_caches_may_stand_anywhere(before, rows, width, data):
    dtype = np.dtype(data.draw(st.sampled_from(oracles.STORAGE_TYPES)))
    plan = Plan.build([None, maps.linear(width, 2 * width + 1)], (rows, width))
    x = data.draw(kernel_plans.tensors((rows, width), dtype))
    expected = np.empty(plan.output_shape, dtype)
    NumpyCpu().apply(plan, x, expected)
    memory = np.full(before + expected.nbytes + 80, 0xA5, np.uint8)
    left, y, right = np.split(memory, [before, before + expected.nbytes])
    with streaming(1) as backend:
        backend.apply(plan, x, y.view(dtype).reshape(expected.shape))
    oracles.same_bits(y.view(dtype).reshape(expected.shape), expected)
    assert (left == 0xA5).all()
    assert (right == 0xA5).all()


def test_the_listed_cases_go_every_way():
    numba_calls.check_ways()


def test_sixteen_bit_numbers_come_in_exactly_and_go_out_rounded_to_nearest_even():
    numba_calls.check_conversions(compiled(1))


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
    length=st.sampled_from(kernel_plans.LENGTHS),
    outer=st.integers(1, 3),
    inner=st.integers(1, 140),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
)
def test_inputs_accumulated_in_any_pieces_have_the_bits_of_numpy(data, length, outer, inner, dtype):
    bands = data.draw(kernel_plans.bands(length, 300).filter(lambda one: one.is_increasing))
    x = data.draw(kernel_plans.tensors((outer, length, inner), dtype))
    inside = data.draw(st.lists(st.integers(0, length), max_size=4))
    cuts = sorted({0, length, *inside})
    expected = np.empty((outer, bands.outputs, inner), dtype)
    NumpyCpu().accumulate(bands, x, expected, axis=1, carried=0)
    oracles.same_bits(in_pieces(compiled(1), bands, x, cuts), expected)


def test_large_tensors_are_shared_among_threads_and_small_ones_are_not():
    backend, _ = backends.choose("numba_cpu", threads=3)
    before = set(threading.enumerate())
    for rows, width, helpers in ((64, 64, {0}), (2048, 1024, {1, 2})):
        plan = Plan.build([None, maps.linear(width, 2 * width)], (rows, width))
        check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
        started = set(threading.enumerate()) - before
        assert sum(one.name.startswith("gradwire-kernel") for one in started) in helpers


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


def test_only_a_row_is_held_of_an_input_that_repeats_it():
    plan = Plan.build([maps.linear(2048, 64), maps.linear(1024, 32)], (2048, 1024))
    backend, y = compiled(1), np.empty(plan.output_shape, np.float32)
    assert isinstance(backend, TellsHeldBytes)
    for shape, held in (((1024,), 0), ((1,), 4 << 10), ((2048, 1), 4 << 21)):
        x = np.broadcast_to(np.zeros(shape, np.float32), plan.input_shape)
        assert backend.held_bytes(plan, x, y) == held
    assert not isinstance(NumpyCpu(), TellsHeldBytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "checks",
    [
        "check_guarded_cases(compiled(1))",
        pytest.param(
            "with streaming(1) as backend: check_guarded_cases(backend)", marks=pytest.mark.heavy
        ),
        "check_guarded_sums()",
    ],
)
def test_nothing_before_or_beyond_a_tensor_is_read_or_written(checks):
    done = run_program(f"from support.kernels.numba_calls import *\n{checks}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("touch", ["memory.shut(); last.tobytes()", "ctypes.string_at(end, 1)"])
def test_who_touches_what_lies_beyond_guarded_memory_or_is_shut_ends(touch):
    program = f"""
from support.kernels.numba_calls import *
memory = GuardedMemory(1)
last = memory.array([1], np.uint8, at_end=True)
end = last.ctypes.data + 1
last.tobytes()
print("inside", flush=True)
{touch}
"""
    done = run_program(program)
    assert (done.stdout, done.returncode) == ("inside\n", -signal.SIGSEGV)


def test_the_last_block_of_a_plane_reads_no_other_plane():
    """Before, it read as far before its buffers as the plane is long: an address of nobody's."""
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
from backends import assembly
from support.kernels import numba_calls
from gradwire_server.backends.numba_cpu.vectors import FEATURES
from support.kernels.numba_calls import compiled, streaming

numba_calls.check_all(compiled(2))
with streaming(2) as backend:
    numba_calls.check_all(backend)
numba_calls.check_guarded_sums()
numba_calls.check_ways()
assert not any(map(assembly.fused, assembly.of_kernels().values()))
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
        pytest.param("generic", "", "", "avx f16c fma avx512f", id="any processor"),
        pytest.param(
            "haswell", "+avx,+avx2,+f16c,+fma,+sse4.2", "avx2 f16c fma", "avx512f", id="AVX2"
        ),
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
def test_no_compiled_function_multiplies_and_adds_with_one_rounding():
    compiled(1)
    found = assembly.of_kernels()
    assert "gradwire_server.backends.numba_cpu.blocks.run" in found
    assert any("mulps" in text and "addps" in text for text in found.values())
    assert not {name: assembly.fused(text) for name, text in found.items() if assembly.fused(text)}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instructions of x86-64")
def test_streamed_lines_are_written_past_the_caches_and_fenced():
    compiled(1)
    found = assembly.of_kernels()
    package = "gradwire_server.backends.numba_cpu"
    assert "movnt" in found[f"{package}.rows.stream"]
    assert re.search(r"mfence|lock\s+or", found[f"{package}.blocks.run"])


@pytest.mark.skipif(not _has("fma"), reason="this processor has no fused multiply-add")
def test_a_fused_multiply_add_would_be_found():
    numba = import_module("numba")
    arguments = (numba.float64, numba.float64, numba.float64)

    def one_rounding(a, b, c):
        return a * b + c

    separate = numba.njit(arguments)(one_rounding)
    fused = numba.njit(arguments, fastmath={"contract"})(one_rounding)
    assert not any(map(assembly.fused, assembly.of_function(separate)))
    assert any(map(assembly.fused, assembly.of_function(fused)))
