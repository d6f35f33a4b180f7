"""Applies plans with the compiled kernels, on as many threads as are free."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.backends.numba_cpu import compilation
from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan, fill_empty

if TYPE_CHECKING:
    from gradwire_server.backends.numba_cpu.jobs import Job
    from gradwire_server.backends.numba_cpu.tables import Table

Array = npt.NDArray[Any]
Key = tuple[int, np.dtype[Any], np.dtype[Any]]

# Recent plans whose jobs are kept, and the most table entries that one of them may have.
_KEPT_PLANS = 64
_KEPT_ENTRIES = 1 << 20
# Numbers read and written that are worth waking another thread: that takes some 0.2 ms.
_WORK_OF_A_THREAD = 1 << 21
# Parts that each thread's share is cut into, so that a slow thread delays the others little.
_PARTS = 2


class NumbaCpu:
    """Applies plans. Threads may share it, and share its threads.

    threads    most threads that compute at once, those that call among them
    cache_dir  as for `compilation.load`, on the first use in a process
    """

    name = "numba_cpu"
    splits_work = True

    def __init__(self, *, threads: int = 1, cache_dir: str = "") -> None:
        """Raise ImportError where kernels cannot be compiled."""
        compilation.check()
        self._cache_dir = cache_dir
        self._threads = _Threads(threads)
        self._scratch = _Scratch()
        # By identity; the plan that is kept with its jobs keeps its identity its own.
        self._jobs: OrderedDict[Key, tuple[Plan, list[Job]]] = OrderedDict()
        self._tables: WeakKeyDictionary[BandedMap, dict[np.dtype[Any], Table]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Compile, or load what was compiled before."""
        _ = self._kernels

    @cached_property
    def _kernels(self) -> compilation.Kernels:
        return compilation.load(self._cache_dir)

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        if not plan.passes:
            with np.errstate(all="ignore"):
                np.copyto(y, x, casting="unsafe")
            return
        if not x.size or not y.size:
            y[...] = plan.fill  # no band covers anything
            return
        jobs = self._jobs_of(plan, x.dtype, y.dtype)
        source = np.ascontiguousarray(x)
        for job in jobs[:-1]:
            between = np.empty(job.outputs, compute_dtype(x.dtype))
            self._run(job, source, between)
            source = between
        self._run(jobs[-1], source, y)
        # The kernel fills with +0, and knows of the empty bands of its own passes only.
        if plan.fill != 0 or math.copysign(1, plan.fill) < 0 or len(jobs) > 1:
            fill_empty(plan.passes, y, fill=plan.fill)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        if not y.flags.c_contiguous or not x.size or not y.size:
            NumpyCpu().accumulate(bands, x, y, axis=axis, carried=carried)
            return
        table = self._table(bands, x.dtype)
        source = np.ascontiguousarray(x)
        record = self._kernels.jobs.accumulation(table, source.shape, axis=axis, carried=carried)
        self._kernels.blocks.accumulate(record, _address(source), _address(y))

    def _run(self, job: Job, x: Array, y: Array) -> None:
        run = self._kernels.blocks.run
        place = (job.record, _address(x), _address(y))
        with self._threads.taken(job.work // _WORK_OF_A_THREAD + 1) as threads:
            if threads == 1:
                run(*place, self._scratch.address(job.scratch), 0, job.units)
                return
            parts = min(job.units, threads * _PARTS)
            numbers = itertools.count()

            def work() -> None:
                scratch = self._scratch.address(job.scratch)
                # Taking the next number is atomic.
                for part in itertools.takewhile(parts.__gt__, numbers):
                    first, stop = (job.units * edge // parts for edge in (part, part + 1))
                    run(*place, scratch, first, stop)

            self._threads.run(work, threads)

    def _jobs_of(self, plan: Plan, x: np.dtype[Any], y: np.dtype[Any]) -> list[Job]:
        key = (id(plan), x, y)
        with self._lock:
            found = self._jobs.get(key)
            if found is not None:
                self._jobs.move_to_end(key)
                return found[1]
        compute = compute_dtype(x)
        made: list[Job] = self._kernels.jobs.jobs_of(
            plan.input_shape, plan.passes, (x, y), compute, partial(self._table, compute=compute)
        )
        if plan.table_entries <= _KEPT_ENTRIES:
            with self._lock:
                self._jobs[key] = plan, made
                if len(self._jobs) > _KEPT_PLANS:
                    self._jobs.popitem(last=False)
        return made

    def _table(self, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        with self._lock:
            tables = self._tables.setdefault(bands, {})
            found = tables.get(compute)
        if found is None:
            made: Table = self._kernels.jobs.Table.of(bands, compute)
            found = tables[compute] = made
        return found


class _Threads:
    """Threads that calls share: each takes those that are free, its own among them."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(
            max(1, self._most - 1), thread_name_prefix="gradwire-kernel"
        )

    @contextmanager
    def taken(self, wanted: int) -> Generator[int]:
        """Take at least the calling thread and at most as many as wanted."""
        with self._lock:
            count = max(1, min(wanted, self._free))
            self._free -= count
        try:
            yield count
        finally:
            with self._lock:
                self._free += count

    def run(self, work: Callable[[], None], count: int) -> None:
        """Do the same work on so many threads, the calling one among them."""
        if self._process != os.getpid():
            self._start()  # after a fork the threads are the parent's

        def inside() -> None:
            with default_float_environment():
                work()

        others = [self._pool.submit(inside) for _ in range(count - 1)]
        try:
            inside()
        finally:
            for other in others:
                other.result()


class _Scratch(threading.local):
    """Memory of each thread for what stages hand on."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def address(self, size: int) -> int:
        """Return where at least so many bytes begin, at a multiple of a vector's 64."""
        if len(self._memory) < size + 64:
            # Zeros: what lies beyond a row is read, and arithmetic on denormal numbers is slow.
            self._memory = np.zeros(size + 64, np.uint8)
        return -(-_address(self._memory) // 64) * 64


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
