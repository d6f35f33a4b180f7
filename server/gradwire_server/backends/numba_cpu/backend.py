"""Applies plans with the compiled kernels, on as many threads as are free."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import compilation
from gradwire_server.backends.numba_cpu.forms import taken_of
from gradwire_server.backends.numba_cpu.threads import Scratch, Team
from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.lru import Recent
from gradwire_server.plans import BandedMap, Plan, fill_empty

if TYPE_CHECKING:
    from gradwire_server.backends.numba_cpu.jobs import CompiledPass
    from gradwire_server.backends.numba_cpu.tables import Table

Array = npt.NDArray[Any]
Indices = tuple[slice, ...]

# Recent plans whose jobs are kept, and the table entries of all of them.
_RECENT = 64
_RECENT_ENTRIES = 1 << 22
# Numbers read and written that are worth another thread, if it is awake: 10 to 20 us of work.
_WORK_OF_A_THREAD = 1 << 16
# As many times more are worth waking one up. That takes 20 us of the caller's time, and the helper
# comes 50 to 150 us later.
_WAKING = 16
# More than processors keep of a result until somebody reads it. Measured: 17 MB are written faster
# into the caches by two threads, 34 MB past them.
_STREAMED_BYTES = 32 << 20
# Parts of a thread's least work that are worth being taken apart.
_PARTS = 8

# Of blocks.run. Who gives Python's lock up for microseconds waits for longer to get it back.
_HOLDING_THE_LOCK = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * 6)

_backends: WeakSet[NumbaCpu] = WeakSet()


class NumbaCpu:
    """Applies plans. Threads may share it, and share its threads.

    threads         most threads that compute at once, those that call among them
    cache_dir       as for `compilation.load`, on the first use in a process
    streamed_bytes  results of so many bytes, or more, are written past the caches
    """

    name = "numba_cpu"
    splits_work = True
    may_wait = False

    def __init__(
        self, *, threads: int = 1, cache_dir: str = "", streamed_bytes: int = _STREAMED_BYTES
    ) -> None:
        """Raise ImportError where kernels cannot be compiled."""
        compilation.check()
        self._cache_dir = cache_dir
        self._streamed_bytes = streamed_bytes
        self._most_threads = threads
        self._scratch = Scratch()
        self._tables: WeakKeyDictionary[BandedMap, dict[np.dtype[Any], Table]] = WeakKeyDictionary()
        self.renew()
        _backends.add(self)

    def renew(self) -> None:
        """Forget locks and threads, which a process just forked off has none of."""
        self._lock = threading.Lock()
        self._team: Team | None = None
        # By identity; the plan that is kept with its jobs keeps its identity its own.
        self._jobs: Recent[tuple[Plan, list[CompiledPass], Indices]] = Recent(
            most=_RECENT, max_weight=_RECENT_ENTRIES
        )

    def warm_up(self) -> None:
        """Compile, or load what was compiled before."""
        _ = self._kernels

    @cached_property
    def _kernels(self) -> compilation.Kernels:
        return compilation.load(self._cache_dir)

    @cached_property
    def _run_here(self) -> Callable[[int, int, int, int, int, int], None]:
        return _HOLDING_THE_LOCK(self._kernels.blocks.run.address)

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        if not plan.passes:
            with np.errstate(all="ignore"):
                np.copyto(y, x, casting="unsafe")
            return
        if not x.size or not y.size:
            y[...] = plan.fill  # no band covers anything
            return
        jobs, taken = self._jobs_of(plan, x, y.dtype)
        *first, last = jobs
        source = x if x.flags.c_contiguous else np.ascontiguousarray(x[taken])
        for job in first:
            between = np.empty(job.outputs, compute_dtype(x.dtype))
            self._run(job, source, between)
            source = between
        self._run(last, source, y)
        # The kernel fills with +0, and knows of the empty bands of its own passes only.
        if first or plan.fill or math.copysign(1, plan.fill) < 0:
            fill_empty(plan.passes, y, fill=plan.fill)

    def held_bytes(self, plan: Plan, x: Array, y: Array) -> int:
        """Return the bytes that apply(plan, x, y) takes meanwhile, as `Repeats` says."""
        if not plan.passes or not x.size or not y.size:
            return 0
        jobs, taken = self._jobs_of(plan, x, y.dtype)
        read = x[taken]
        between = sum(job.outputs for job in jobs[:-1]) * compute_dtype(x.dtype).itemsize
        return between + (0 if read.flags.c_contiguous else read.nbytes)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        if not y.flags.c_contiguous or not x.size or not y.size:
            NumpyCpu().accumulate(bands, x, y, axis=axis, carried=carried)
            return
        table = self._table(bands, x.dtype)
        source = np.ascontiguousarray(x)
        record = self._kernels.jobs.accumulation(table, source.shape, axis=axis, carried=carried)
        self._kernels.blocks.accumulate(record, _address(source), _address(y))

    def _run(self, job: CompiledPass, x: Array, y: Array) -> None:
        if job.work < _WORK_OF_A_THREAD:
            scratch = self._scratch.address(job.scratch)
            self._run_here(job.address, _address(x), _address(y), scratch, 0, job.units)
            return
        team = self._team or self._new_team()
        wanted, shares = _shares(job)
        self._kernels.team.share(
            team.ready(wanted),
            self._kernels.blocks.run.address,
            job.address,
            _address(x),
            _address(y),
            self._scratch.address(job.scratch),
            *shares,
        )

    def _new_team(self) -> Team:
        code = self._kernels.team
        with self._lock:
            if self._team is None:
                self._team = Team(self._most_threads, code)
            return self._team

    def _jobs_of(
        self, plan: Plan, x: Array, y: np.dtype[Any]
    ) -> tuple[list[CompiledPass], Indices]:
        """Return the jobs, and what of x the first one reads: the rest repeats it."""
        repeated = () if x.flags.c_contiguous else tuple(not step for step in x.strides)
        key = (id(plan), x.dtype, y, repeated)
        found = self._jobs.get(key)
        if found is not None:
            return found[1:]
        compute = compute_dtype(x.dtype)
        made: list[CompiledPass] = self._kernels.jobs.jobs_of(
            plan.input_shape,
            plan.passes,
            (x.dtype, y),
            compute,
            partial(self._table, compute=compute),
            streamed_bytes=self._streamed_bytes,
            repeated=repeated,
        )
        first = plan.passes if len(made) == 1 else plan.passes[:1]
        taken = taken_of(plan.input_shape, first, made[0].repeats)
        self._jobs.keep(key, (plan, made, taken), weight=plan.table_entries)
        return made, taken

    def _table(self, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        with self._lock:
            tables = self._tables.setdefault(bands, {})
            found = tables.get(compute)
        if found is None:
            made: Table = self._kernels.jobs.Table.of(bands, compute)
            found = tables[compute] = made
        return found


def _shares(job: CompiledPass) -> tuple[int, tuple[int, int, int, int, int, int]]:
    """Return how many threads are wanted, and what `share` is told last."""
    wanted = job.work // _WORK_OF_A_THREAD + 1
    least = -(-job.units * _WORK_OF_A_THREAD // (_PARTS * job.work))
    worth = _WAKING * _WORK_OF_A_THREAD
    return wanted, (job.scratch, job.units, least, wanted, job.work, worth)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _renew_all() -> None:
    for one in _backends:
        one.renew()


os.register_at_fork(after_in_child=_renew_all)
