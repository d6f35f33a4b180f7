"""Backend that applies plans with compiled kernels on free threads."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import compilation
from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan, fill_empty

if TYPE_CHECKING:
    from gradwire_server.backends.numba_cpu.jobs import CompiledPass
    from gradwire_server.backends.numba_cpu.tables import Table
    from gradwire_server.backends.numba_cpu.threads import Scratch, Team

Array = npt.NDArray[Any]

# Elements read and written that are worth another thread if it is awake: 10 to 20 us of work.
_WORK_OF_A_THREAD = 1 << 16
# As many times more are worth waking it up, which takes 20 us of the caller's time; the helper
# starts 50 to 150 us later, and is awake for the next call.
_WAKING = 4
# Larger results do not stay in the caches until they are read. Measured: two threads write 17 MB
# faster through the caches, 34 MB faster past them.
_STREAMED_BYTES = 32 << 20
# Parts into which a thread's least work may be divided.
_PARTS = 8

# Signature of blocks.run. It keeps the GIL: after releasing it for microseconds, a thread waits
# longer to get it back.
_HOLDING_THE_GIL = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * 6)

_backends: WeakSet[NumbaCpu] = WeakSet()


class NumbaCpu:
    """Applies plans. It is thread-safe, and its callers share its threads.

    threads         most threads that compute at once, callers' own included
    cache_dir       as in `compilation.load`, on the first use in a process
    streamed_bytes  results of at least so many bytes bypass the caches
    """

    name = "numba_cpu"
    splits_work = True
    may_wait = False

    def __init__(
        self, *, threads: int = 1, cache_dir: str = "", streamed_bytes: int = _STREAMED_BYTES
    ) -> None:
        """Raise ImportError if kernels cannot be compiled here."""
        compilation.check()
        self._cache_dir = cache_dir
        self._streamed_bytes = streamed_bytes
        self._most_threads = threads
        self._tables: WeakKeyDictionary[BandedMap, dict[np.dtype[Any], Table]] = WeakKeyDictionary()
        self._jobs: WeakKeyDictionary[Plan, dict[object, list[CompiledPass]]] = WeakKeyDictionary()
        _backends.add(self)

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the cache."""
        _ = self._kernels

    def load_stored(self, folder: str) -> bool:
        """Load the kernels, as `StoresKernels` specifies."""
        if not compilation.is_stored(folder):
            return False
        compilation.load(folder)
        return True

    @cached_property
    def _kernels(self) -> compilation.Kernels:
        return compilation.load(self._cache_dir)

    @cached_property
    def _scratch(self) -> Scratch:
        scratch: Scratch = self._kernels.threads.Scratch()
        return scratch

    @cached_property
    def _team(self) -> Team:
        # If two threads each make a team, the replaced one ends when its call does.
        team: Team = self._kernels.threads.Team(self._most_threads)
        return team

    @cached_property
    def _run_here(self) -> Callable[[int, int, int, int, int, int], None]:
        return _HOLDING_THE_GIL(self._kernels.blocks.run.address)

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as `Backend` specifies."""
        if not plan.passes:
            with np.errstate(all="ignore"):
                np.copyto(y, x, casting="unsafe")
            return
        if not x.size or not y.size:
            y[...] = plan.fill  # every band is empty
            return
        jobs = self._jobs_of(plan, x, y.dtype)
        if not jobs:
            NumpyCpu().apply(plan, x, y)
            return
        *first, last = jobs
        source = x if x.flags.c_contiguous else np.ascontiguousarray(x[jobs[0].read])
        for job in first:
            between = np.empty(job.outputs, compute_dtype(x.dtype))
            self._run(job, source, between)
            source = between
        self._run(last, source, y)
        # A job fills with +0, and only where the bands of its own passes are empty.
        if first or plan.fill or math.copysign(1, plan.fill) < 0:
            fill_empty(plan.passes, y, fill=plan.fill)

    def bound(self, plan: Plan, x: Array, y: Array) -> Callable[[], None]:
        """Return apply(plan, x, y) for arrays that stay, as `BindsArrays` specifies."""
        fills_zero = not plan.fill and math.copysign(1, plan.fill) > 0
        if plan.passes and x.size and y.size and x.flags.c_contiguous and fills_zero:
            jobs = self._jobs_of(plan, x, y.dtype)
            if len(jobs) == 1 and jobs[0].work < _WORK_OF_A_THREAD:
                job, scratch = jobs[0], self._scratch
                run = partial(self._run_here, job.address, _address(x), _address(y))

                def run_job(_kept: object = (plan, x, y)) -> None:
                    run(scratch.address(job.scratch), 0, job.units)

                return run_job
        return partial(self.apply, plan, x, y)

    def held_bytes(self, plan: Plan, x: Array, y: Array) -> int:
        """Return the temporary bytes of apply(plan, x, y), as `TellsHeldBytes` specifies."""
        if not plan.passes or not x.size or not y.size:
            return 0
        jobs = self._jobs_of(plan, x, y.dtype)
        if not jobs:
            return (x.size + y.size) * compute_dtype(x.dtype).itemsize
        read = x[jobs[0].read]
        between = sum(job.outputs for job in jobs[:-1]) * compute_dtype(x.dtype).itemsize
        return between + (0 if read.flags.c_contiguous else read.nbytes)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add every output's taps on x to y, as `Backend` specifies."""
        if not y.flags.c_contiguous or not x.size or not y.size:
            NumpyCpu().accumulate(bands, x, y, axis=axis, carried=carried)
            return
        table = self._table(bands, x.dtype)
        x = np.ascontiguousarray(x)
        self._kernels.jobs.accumulate(table, x, y, axis=axis, carried=carried)

    def _run(self, job: CompiledPass, x: Array, y: Array) -> None:
        arguments = job.address, _address(x), _address(y), self._scratch.address(job.scratch)
        if job.work < _WORK_OF_A_THREAD:
            self._run_here(*arguments, 0, job.units)
            return
        team = self._team  # the reference keeps its memory during the call
        wanted = job.work // _WORK_OF_A_THREAD + 1
        least = -(-job.units * _WORK_OF_A_THREAD // (_PARTS * job.work))
        self._kernels.threads.share(
            team.address,
            self._scratch.task,
            self._kernels.blocks.run.address,
            *arguments,
            job.scratch,
            job.units,
            least,
            wanted,
            job.work >= _WAKING * _WORK_OF_A_THREAD,
        )

    def _jobs_of(self, plan: Plan, x: Array, y: np.dtype[Any]) -> list[CompiledPass]:
        repeated = () if x.flags.c_contiguous else tuple(not step for step in x.strides)
        jobs, key = self._jobs.setdefault(plan, {}), (x.dtype, y, repeated)
        if key not in jobs:
            jobs[key] = self._kernels.jobs.jobs_of(
                plan.input_shape,
                plan.passes,
                (x.dtype, y),
                partial(self._table, compute=compute_dtype(x.dtype)),
                streamed_bytes=self._streamed_bytes,
                repeated=repeated,
            )
        return jobs[key]

    def _table(self, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        tables = self._tables.setdefault(bands, {})
        if compute not in tables:
            tables[compute] = self._kernels.jobs.Table.of(bands, compute)
        return tables[compute]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _forget_teams() -> None:
    """Let forked processes start threads of their own."""
    for one in _backends:
        vars(one).pop("_team", None)


os.register_at_fork(after_in_child=_forget_teams)
