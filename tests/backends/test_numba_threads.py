"""Threads share the work of the compiled backend, and the backend itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import NumpyCpu, compute_dtype
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels import kernel_plans
from support.kernels.backend_calls import applied
from support.kernels.kernel_table import FORMATS, cases, check, numbers
from support.kernels.numba_calls import compiled, needs_numba, run_program, small_shares
from support.oracles import oracles

pytestmark = needs_numba


@pytest.fixture(scope="module", autouse=True)
def _small_shares() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Let threads share small tensors."""
    with small_shares():
        yield


@settings(max_examples=300, deadline=None)
@given(data=st.data(), plan=kernel_plans.plans(), dtype=st.sampled_from(oracles.STORAGE_TYPES))
def test_any_plan_has_the_bits_of_numpy_on_any_number_of_threads(
    data: st.DataObject, plan: Plan, dtype: np.dtype[np.generic]
) -> None:
    arriving, leaving = (
        data.draw(st.sampled_from([dtype, compute_dtype(dtype)]), label=label)
        for label in ("arriving", "leaving")
    )
    x = data.draw(kernel_plans.tensors(plan.input_shape, arriving))
    check(compiled(data.draw(st.sampled_from([1, 2, 3]), label="threads")), plan, x, leaving)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("arriving", "leaving"), FORMATS)
def test_any_number_of_threads_gives_the_same_bits(
    threads: int, arriving: np.dtype[np.generic], leaving: np.dtype[np.generic]
) -> None:
    for case in cases()[::5]:
        check(compiled(threads), case.plan, numbers(case, arriving, special=True), leaving)


@pytest.mark.parametrize("threads", [2, 4])
def test_calls_on_many_threads_at_once_do_not_disturb_each_other(threads: int) -> None:
    backend, _ = backends.choose("numba_cpu", threads=threads)
    some = cases()[::7]
    dtype = np.dtype(np.float16)
    tensors = [numbers(case, dtype, special=True) for case in some]
    expected = [
        applied(NumpyCpu(), case.plan, x, dtype) for case, x in zip(some, tensors, strict=True)
    ]
    places: list[int] = np.random.default_rng(7).integers(0, len(some), 4 * len(some)).tolist()

    def apply(at: int) -> oracles.Tensor:
        return applied(backend, some[at].plan, tensors[at], dtype)

    with ThreadPoolExecutor(8) as pool:
        for at, result in zip(places, pool.map(apply, places), strict=True):
            oracles.same_bits(result, expected[at])


@pytest.fixture
def _many_switches() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Let threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_begin_with_the_same_plan_at_once_do_not_disturb_each_other() -> None:
    backend, _ = backends.choose("numba_cpu", threads=1)
    x = np.random.default_rng(8).standard_normal((3, 2000)).astype(np.float32)
    expected = np.empty((3, 2667), np.float32)
    NumpyCpu().apply(Plan.build([None, maps.cubic(2000, 2667)], x.shape), x, expected)
    start = threading.Barrier(6)

    def prepare_and_apply(plan: Plan) -> list[oracles.Tensor]:
        start.wait()
        return [applied(backend, plan, x, np.float32) for _ in range(3)]

    with ThreadPoolExecutor(6) as pool:
        for _ in range(60):
            plan = Plan.build([None, maps.cubic(2000, 2667)], x.shape)
            for results in pool.map(prepare_and_apply, [plan] * 6):
                for result in results:
                    oracles.same_bits(result, expected)


FORK = """
import os, signal, threading
import numpy as np
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from gradwire_server import backends
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from support.kernels.numba_calls import small_shares
from support.kernels.numba_calls import free_threads

plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
x = np.random.default_rng(9).standard_normal(plan.input_shape).astype(np.float32)
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
        with vars(backend)["_lock"]:
            child = os.fork()
        if not child:
            signal.alarm(60)
            assert threading.active_count() == 1
            check()
            assert threading.active_count() > 1
            assert free_threads(backend) == 3
            check()
            os._exit(0)
        children.append(child)
        check()
    over.set()
    for one in others:
        one.join()
    assert free_threads(backend) == 3
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_a_process_forked_off_amid_calls_computes_with_threads_of_its_own() -> None:
    done = run_program(FORK)
    assert (done.returncode, done.stdout) == (0, "0 0 0 0 0\n"), done.stderr
