"""Helpers of the compiled backend: what they do, what they leave alone, and when they end."""

from __future__ import annotations

import gc
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels.kernel_table import check
from support.kernels.numba_calls import (
    Count,
    needs_numba,
    run_program,
    small_shares,
    team_code,
    word,
)

pytestmark = needs_numba

_ENOUGH_S = 60.0


@settings(max_examples=60, deadline=None)
@given(
    most=st.integers(1, 5),
    wanted=st.integers(1, 40),
    units=st.integers(1, 200),
    slow_us=st.sampled_from([0, 20, 300]),
)
def test_every_unit_is_computed_once(most: int, wanted: int, units: int, slow_us: int) -> None:
    team = team_code().Team(most)
    for _ in range(3):
        count = Count(units)
        count.share(team.address, threads=wanted, slow_us=slow_us)
        assert (count.done == 1).all()
        assert not count.in_use
    assert word(team.address, "FREE_THREADS") == most


def test_what_a_helper_has_not_begun_is_taken_back() -> None:
    memory = team_code().ScratchMemory(4096)
    code = team_code()
    memory.put(code.FREE_THREADS, 2)
    memory.put(code.HELPERS, 1)
    mailbox = memory.address + code.TEAM_BYTES
    count = Count(50)
    count.share(memory.address, threads=2)
    assert (count.done == 1).all()
    assert word(mailbox, "STATE") == code.FREE
    helper = threading.Thread(target=code.serve, args=(mailbox,))
    helper.start()
    code.end(memory.address)
    helper.join(_ENOUGH_S)
    assert not helper.is_alive()
    assert (count.done == 1).all()


LATE = """
import random, time
from support.kernels.numba_calls import GuardedMemory
from support.kernels.numba_calls import counting, team_code
import numpy as np

team = team_code().Team(3)
run = counting()
for number in range(400):
    places = [GuardedMemory(1) for _ in range(4)]
    task, *addresses = (one.array([512], np.int64, at_end=True).ctypes.data for one in places)
    team_code().share(team.address, task, run, number % 3 * 60, *addresses, 8, 40, 1, 3, 1, 0)
    for one in places:
        one.shut()
    if number % 4:
        time.sleep(random.random() / 1000)
"""


@pytest.mark.slow
def test_no_helper_touches_what_belongs_to_a_call_that_has_returned() -> None:
    done = run_program(LATE)
    assert done.returncode == 0, done.stderr


def test_who_touches_memory_that_is_shut_ends() -> None:
    program = """
from support.kernels import numba_calls
memory = numba_calls.GuardedMemory(1)
memory.touch(beyond=-1)
memory.shut()
memory.touch(beyond=-1)
"""
    assert run_program(program).returncode == -signal.SIGSEGV


def _helpers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("gradwire-kernel")]


def test_helpers_end_with_their_backend() -> None:
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    x = np.ones(plan.input_shape, np.float32)
    gc.collect()
    files = Path("/proc/self/fd")
    before, open_before = set(_helpers()), len(list(files.iterdir()))
    for _ in range(3):
        backend, _ = backends.choose("numba_cpu", threads=3)
        with small_shares():
            check(backend, plan, x, np.float32)
        assert len(set(_helpers()) - before) == 2
        del backend
        gc.collect()
        until = time.monotonic() + _ENOUGH_S
        while set(_helpers()) - before and time.monotonic() < until:
            time.sleep(0.001)
        assert not set(_helpers()) - before
    assert len(list(files.iterdir())) == open_before


def test_a_backend_of_one_thread_starts_none() -> None:
    plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
    backend, _ = backends.choose("numba_cpu", threads=1)
    before = set(_helpers())
    with small_shares():
        check(backend, plan, np.ones(plan.input_shape, np.float32), np.float32)
    assert set(_helpers()) <= before


EXIT = """
import atexit, threading, time

@atexit.register  # before the backend does: it runs afterwards
def tell():
    print(*(one.name for one in threading.enumerate()))

import numpy as np
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from gradwire_server import backends
from gradwire_server.plans import Plan
from support.kernels.numba_calls import small_shares

plan = Plan.build([None, maps.linear(256, 512)], (512, 256))
x = np.ones(plan.input_shape, np.float32)
backend, _ = backends.choose("numba_cpu", threads=4)
gone, _ = backends.choose("numba_cpu", threads=2)
with small_shares():
    applied(gone, plan, x, np.float32)
    del gone
    applied(backend, plan, x, np.float32)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_helpers_end_before_the_process_whether_they_sleep_or_not(pause_s: float) -> None:
    done = run_program(EXIT, pause_s)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr


def test_without_more_threads_a_call_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    team = team_code().Team(3)
    count = Count(20)
    count.share(team.address, threads=3)
    assert (count.done == 1).all()
    assert word(team.address, "HELPERS") == 0
