"""The compiled backend where there is numba: its ways, what is asserted of it, its helpers.

Arrays in guarded memory begin or end where no one may read or write: who does ends with SIGSEGV.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.plans import BandedMap, Plan
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.kernel_table import FORMATS, Case, cases, check, numbers, some_formats
from support.oracles import oracles
from support.processes import environment

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

_PACKAGE = "gradwire_server.backends.numba_cpu"


@contextmanager
def small_shares() -> Generator[None]:
    """Let threads share tensors of the sizes that tests have time for, and wake up for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.backend._WORK_OF_A_THREAD", 1 << 10)
        patch.setattr(f"{_PACKAGE}.backend._WAKING", 0)
        yield


@cache
def compiled(threads: int) -> Backend:
    backend, _ = backends.choose("numba_cpu", threads=threads)
    backend.warm_up()
    return backend


@contextmanager
def streaming(threads: int) -> Generator[Backend]:
    """Let a compiled backend write all results past the caches, short rows as well."""
    # Importing jobs first would compile into numba's own cache, which misses changes of callees.
    import_module(f"{_PACKAGE}.compilation").load("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.jobs._LEAST_STREAMED", 0)
        made: Backend = import_module(_PACKAGE).NumbaCpu(threads=threads, streamed_bytes=0)
        made.warm_up()
        yield made


def run_program(
    program: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    beside = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", beside + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(env),
    )


class Way(NamedTuple):
    """How one job of a plan is done.

    method   of the width stage
    staged   whether the depth stage runs
    tiled    whether rows are cut into several tiles
    chunked  whether a band of the last axis is longer than what is held of a row
    jobs     how many the plan has
    """

    method: int
    staged: bool
    compute: np.dtype[np.generic]
    tiled: bool
    chunked: bool
    jobs: int


def listed_ways() -> set[Way]:
    computed = (np.dtype(np.float32), np.dtype(np.float64))
    return {way for case in cases() for one in computed for way in _ways(case.plan, one)}


def methods() -> set[int]:
    """Return the methods of the width stage that this processor can run."""
    records = import_module(f"{_PACKAGE}.records")
    can_pick = import_module(f"{_PACKAGE}.instructions").CAN_PICK
    names = ("NO_WIDTH", "CHANNELS", "COLUMNS", "HALVE", "DOUBLE", *["PERMUTE"] * can_pick)
    return {getattr(records, name) for name in names}


def _ways(plan: Plan, compute: np.dtype[np.generic]) -> Iterator[Way]:
    kernels = import_module(f"{_PACKAGE}.compilation").load("")
    table = partial(import_module(f"{_PACKAGE}.tables").Table.of, compute=compute)
    sizes, last = (plan.input_shape, plan.passes), plan.passes[-1].map
    jobs = kernels.jobs.jobs_of(*sizes, (compute, compute), table, streamed_bytes=1 << 60)
    for job in jobs:
        record = job.record[0]
        yield Way(
            method=int(record["method"]),
            staged=bool(record["depth"]["moves"]),
            compute=compute,
            tiled=bool(record["tiles"] > 1),
            chunked=bool(record["chunk"] < int(last.counts.max())),
            jobs=len(jobs),
        )


def check_all(backend: Backend) -> None:
    """Assert NumPy's bits of every listed case in some formats, and of conversions."""
    for case in cases():
        for arriving, leaving in some_formats(case):
            check(backend, case.plan, numbers(case, arriving, special=True), leaving)
    check_conversions(backend)


def check_case(backend: Backend, case: Case) -> None:
    for special in (False, True):
        for arriving, leaving in FORMATS[special::2]:
            check(backend, case.plan, numbers(case, arriving, special=special), leaving)


def check_conversions(backend: Backend) -> None:
    """Assert that all 16-bit numbers come in exactly, and float32 goes out rounded to nearest even.

    Of float32: all 16-bit numbers, all ties between neighbors, what lies next to those, overflow,
    denormal numbers, and random bits.
    """
    words = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(6)
    for narrow in oracles.STORAGE_TYPES[1:3]:
        held = words.view(narrow)
        _check_copied(backend, held, np.dtype(np.float32))
        _check_copied(backend, held, narrow)
        with np.errstate(invalid="ignore"):
            exact = np.sort(held[np.isfinite(held)].astype(np.float32))
        ties = exact[:-1] + (exact[1:] - exact[:-1]) / 2
        limits = [65504, 65519.996, 65520, 65536, 3.3895314e38, 3.4e38, np.inf, np.nan]
        ends = np.array(limits, np.float32)
        near = np.concatenate([exact, ties, ends, -ends])
        with np.errstate(all="ignore"):
            above, below = (np.nextafter(near, np.float32(to)) for to in (np.inf, -np.inf))
        random = rng.integers(0, 1 << 32, 1 << 19, np.uint32).view(np.float32)
        _check_copied(backend, np.concatenate([near, above, below, random]), narrow)


def _check_copied(backend: Backend, x: oracles.Tensor, dtype: np.dtype[np.generic]) -> None:
    """Copy rows of different lengths to other places: what goes out is what NumPy converts."""
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
        for rows in (2, 3):
            length = len(x) // rows * rows
            index, weight = np.arange(rows)[::-1, np.newaxis], np.ones((rows, 1))
            backwards = BandedMap.from_blocks([(index, weight)], inputs=rows)
            plan = Plan.build([backwards, None], (rows, length // rows))
            result = applied(backend, plan, x[:length].reshape(rows, -1), dtype)
            oracles.same_bits(result, expected[:length].reshape(rows, -1)[::-1])


class GuardedMemory:
    """A piece of memory between two pages that may not be touched.

    size  bytes, at least
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._size = -(-size // page) * page
        self._memory = mmap.mmap(-1, self._size + 2 * page)
        self._first = page
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for place in (self._start, self._start + page + self._size):
            _forbid(place, page)

    def shut(self) -> None:
        _forbid(self._start, self._first + self._size)

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike, *, at_end: bool) -> oracles.Tensor:
        """Return an array that ends where the memory ends, or begins where it begins."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        assert size <= self._size
        offset = self._first + (self._size - size if at_end else 0)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def holding(self, values: oracles.Tensor, *, at_end: bool) -> oracles.Tensor:
        array = self.array(values.shape, values.dtype, at_end=at_end)
        array[...] = values
        return array

    def touch(self, *, beyond: int) -> bytes:
        end = self._start + self._first + self._size
        return ctypes.string_at(end + beyond, 1)


def _forbid(place: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.mprotect(place, size, 0):  # PROT_NONE
        raise OSError(ctypes.get_errno(), "mprotect")


class GuardedScratch:
    """Stands for the buffers of a thread: exactly as many bytes as a job has asked for."""

    def __init__(self) -> None:
        self.at_end = False
        self._memory = GuardedMemory(1 << 24)
        self._own = team_code().Scratch()
        self.task = self._own.task

    def address(self, size: int) -> int:
        """Return where they begin, at a multiple of a vector's bytes."""
        array = self._memory.array([size], np.uint8, at_end=self.at_end)
        return array.ctypes.data // 64 * 64


def check_guarded_streams() -> None:
    with streaming(1) as backend:
        check_guarded_cases(backend)


def check_guarded_cases(given: Backend | None = None) -> None:
    """Assert NumPy's bits of all listed cases, in some formats, with guarded buffers."""
    backend = given or backends.choose("numba_cpu")[0]
    scratch = vars(backend)["_scratch"] = GuardedScratch()
    shapes = [shape for one in cases() for shape in (one.plan.input_shape, one.plan.output_shape)]
    source, target = (GuardedMemory(8 * max(map(math.prod, shapes))) for _ in "xy")
    for case, (arriving, leaving) in ((one, some) for one in cases() for some in some_formats(one)):
        ordinary = numbers(case, arriving, special=False)
        expected = np.empty(case.plan.output_shape, leaving)
        NumpyCpu().apply(case.plan, ordinary, expected)
        for at_end in (False, True):
            x = source.holding(ordinary, at_end=at_end)
            y = target.array(expected.shape, leaving, at_end=at_end)
            scratch.at_end = at_end
            backend.apply(case.plan, x, y)
            oracles.same_bits(y, expected)


def check_guarded_sums() -> None:
    backend, _ = backends.choose("numba_cpu")
    source, target = GuardedMemory(1 << 20), GuardedMemory(1 << 20)
    bands = maps.cubic(29, 97).adjoint()
    for inner, dtype in product([1, 5, 8, 16, 17, 40, 64, 67, 130], [np.float32, np.float64]):
        whole = np.random.default_rng(inner).standard_normal((1, 97, inner)).astype(dtype)
        expected = np.empty((1, bands.outputs, inner), dtype)
        NumpyCpu().accumulate(bands, whole, expected, axis=1, carried=0)
        for at_end in (False, True):
            y = target.array(expected.shape, dtype, at_end=at_end)
            carried = 0
            for low, high in pairwise([0, 40, 41, 97]):
                x = source.holding(whole[:, low:high], at_end=at_end)
                piece = bands.window(0, bands.outputs, low, high)
                backend.accumulate(piece, x, y, axis=1, carried=carried)
                carried = int((bands.start < high).sum())
            oracles.same_bits(y, expected)


def team_code() -> ModuleType:
    module: ModuleType = import_module(f"{_PACKAGE}.compilation").load("").threads
    return module


def free_threads(backend: Backend) -> int:
    return word(vars(backend)["_team"].address, "FREE_THREADS")


def word(place: int, field: str) -> int:
    offset: int = vars(team_code())[field]
    return ctypes.c_int64.from_address(place + offset).value


@cache
def counting() -> int:
    """Address of a compiled function in place of `blocks.run`.

    Its job is how many microseconds every eighth unit takes; it counts at y how often each unit is
    computed, and at x how often a thread's buffers are in use already.
    """
    numba: Any = import_module("numba")
    code, int64 = team_code(), numba.types.int64
    exchange, fetch_add = code.exchange, code.fetch_add
    usleep = numba.types.ExternalFunction("usleep", numba.types.int32(numba.types.uint32))

    def run(job: int, x: int, y: int, scratch: int, first: int, stop: int) -> None:  # noqa: PLR0917 - as it is called
        fetch_add(x, exchange(scratch, 1))
        for unit in range(first, stop):
            fetch_add(y + 8 * unit, 1)
            if unit % 8 == 0 and job:
                usleep(job)
        exchange(scratch, 0)

    compiled = numba.cfunc(numba.types.void(*[int64] * 6))(run)
    _kept.append(compiled)
    return int(compiled.address)


_kept: list[object] = []


class Count:
    """A job of some units and what is counted of it."""

    def __init__(self, units: int) -> None:
        self.in_use = np.zeros(1, np.int64)
        self.done = np.zeros(units, np.int64)
        self._buffers = np.zeros(16, np.int64)
        self._task = team_code().ScratchMemory(team_code().TASK_BYTES)

    def share(self, team: int, *, threads: int, slow_us: int = 0) -> None:
        places = (one.ctypes.data for one in (self.in_use, self.done, self._buffers))
        numbers = (8, len(self.done), 1, threads, True)
        team_code().share(team, self._task.address, counting(), slow_us, *places, *numbers)
