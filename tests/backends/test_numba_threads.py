"""Threads share the work of the compiled backend, and the backend; when its helpers end."""

import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import NumpyCpu, compute_dtype
from gradwire_server.plans import Plan
from support.examples import examples
from support.kernels import kernel_maps as maps
from support.kernels import kernel_plans, numba_calls
from support.kernels.backend_calls import applied
from support.kernels.kernel_table import cases, check, numbers
from support.kernels.numba_calls import compiled, needs_numba, run_program
from support.oracles import oracles
from support.raw_calls import wait_until

pytestmark = needs_numba


@pytest.fixture(scope="module", autouse=True)
def _small_shares():  # pyright: ignore[reportUnusedFunction]
    with numba_calls.small_shares():
        yield


@examples(300)
@given(data=st.data(), plan=kernel_plans.plans(), dtype=st.sampled_from(oracles.STORAGE_TYPES))
def test_any_plan_has_the_bits_of_numpy_on_any_number_of_threads(data, plan, dtype):
    arriving, leaving = (
        data.draw(st.sampled_from([dtype, compute_dtype(dtype)]), label=label)
        for label in ("arriving", "leaving")
    )
    x = data.draw(kernel_plans.tensors(plan.input_shape, arriving))
    check(compiled(data.draw(st.sampled_from([1, 2, 3]), label="threads")), plan, x, leaving)


@pytest.mark.parametrize("threads", [2, 3])
def test_some_listed_cases_have_the_bits_of_numpy_on_several_threads(threads):
    for case in cases()[::5]:
        numba_calls.check_case(compiled(threads), case)


@pytest.mark.parametrize("threads", [2, 4])
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


IMPORTS = """
import os, signal, threading
import numpy as np
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from gradwire_server import backends
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from support.kernels.numba_calls import small_shares

plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
x = np.random.default_rng(9).standard_normal(plan.input_shape).astype(np.float32)
"""

FORK = (
    IMPORTS
    + """
expected = applied(NumpyCpu(), plan, x, np.float32)
backend, _ = backends.choose("numba_cpu", threads=3)

def check():
    assert (applied(backend, plan, x, np.float32) == expected).all()

def go_on():
    while not over.is_set():
        check()

over = threading.Event()
others = [threading.Thread(target=go_on) for _ in range(2)]
children = []
with small_shares():
    check()
    for one in others:
        one.start()
    for _ in range(5):
        child = os.fork()
        if not child:
            signal.alarm(60)
            assert threading.active_count() == 1
            check()
            assert threading.active_count() > 1
            os._exit(0)
        children.append(child)
        check()
    over.set()
    for one in others:
        one.join()
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
)


def test_a_process_forked_off_amid_calls_computes_with_threads_of_its_own():
    done = run_program(FORK)
    assert (done.returncode, done.stdout) == (0, "0 0 0 0 0\n"), done.stderr


LATE = """
import random, time
import numpy as np
from support.kernels import kernel_maps as maps
from support.kernels.numba_calls import GuardedMemory, compiled, guarded_scratch, small_shares
from gradwire_server.plans import Plan

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


def _helpers():
    return {one for one in threading.enumerate() if one.name.startswith("gradwire-kernel")}


@pytest.mark.parametrize("threads", [1, 3])
def test_helpers_are_one_less_than_threads_and_end_with_their_backend(threads):
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    gc.collect()
    files = Path("/proc/self/fd")
    before, open_before = _helpers(), len(list(files.iterdir()))
    for _ in range(3):
        backend, _ = backends.choose("numba_cpu", threads=threads)
        check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
        assert len(_helpers() - before) == threads - 1
        del backend
        gc.collect()
        wait_until(lambda: not _helpers() - before)
    assert len(list(files.iterdir())) == open_before


EXIT = (
    """
import atexit, threading, time

@atexit.register  # before the backend does: it runs afterwards
def tell():
    print(*(one.name for one in threading.enumerate()))
"""
    + IMPORTS
    + """
backend, _ = backends.choose("numba_cpu", threads=4)
gone, _ = backends.choose("numba_cpu", threads=2)
with small_shares():
    applied(gone, plan, x, np.float32)
    del gone
    applied(backend, plan, x, np.float32)
time.sleep(float(sys.argv[1]))
"""
)


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_helpers_end_before_the_process_whether_they_sleep_or_not(pause_s):
    done = run_program(EXIT, pause_s)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr


def test_without_more_threads_a_call_computes_alone(monkeypatch):
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refused)
    backend, _ = backends.choose("numba_cpu", threads=3)
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
    assert refused.called
