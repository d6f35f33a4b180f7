"""The CUDA backend: plans and tensors on a device.

A call is cut along its outer slices, which are independent, into parts that fit a pinned buffer.
All parts go through one stream, so that they share the device memory of one part: while the device
copies and computes a part, the thread fills or empties the pinned buffers of its neighbors. That
memory copy of the host is slower than the bus and the kernels, so several streams for one call
would gain little.

A call owns its stream, its pinned buffers and its device memory until the device has completed its
last copy, also after an error.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any

import numpy as np

from gradwire_server.backends import Backend, BindsArrays, instead_of_compiled
from gradwire_server.backends.call_deadline import wait_s
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.device import Array, Device, DeviceBlock, DeviceError
from gradwire_server.backends.cuda.programs import Buffer, Program, X, Y, every_kernel, packed
from gradwire_server.backends.cuda.staging import CallQueue, StagedStream
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.errors import DeviceLostError
from gradwire_server.lru import Recent
from gradwire_server.plans import BandedMap, Plan

# Concurrent calls; each has a thread that copies for it.
_STREAMS = 4
# Bytes of a pinned buffer. Measured: with 2 MiB, calls of 4 and 16 MiB by 16 threads at once are
# done at 0.75 and 0.62 of the rate; 8 MiB is not faster.
_BUFFER_BYTES = 4 << 20
# Copied bytes for which a call needs as many multiplications again as `cpu_work`.
_CPU_WORK_BYTES = 800 << 10
# Most cached programs, most bytes of their tables on the host, and the fraction of the limit (its
# divisor) for tables on the device.
_MOST_PROGRAMS = 512
_TABLE_BYTES = 64 << 20
_TABLES_SHARE = 8
# Time that a call may wait for device memory held by other calls; less with a nearer deadline.
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _DeviceCall:
    """Arrays x[outer, ...] and y[outer, ...] with the program for outer slices.

    program  returns the program for a number of slices
    recurs   whether other calls use the same program
    carried  whether y is read too
    """

    x: Array
    y: Array
    program: Callable[[int], Program]
    recurs: bool = True
    carried: bool = False

    @property
    def slice_bytes(self) -> tuple[int, int]:
        """Bytes of x and of y for one outer slice."""
        return self.x.nbytes // len(self.x), self.y.nbytes // len(self.y)

    def slices(self, part_bytes: int) -> int:
        """Return the slices of a part of at most part_bytes.

        Parts are equal, and have one slice at least.
        """
        most = max(1, part_bytes // max(self.slice_bytes))
        parts = -(-len(self.x) // most)
        return -(-len(self.x) // parts)


@dataclass(frozen=True, slots=True)
class _Held:
    """The program and the device memory of a call.

    program    program of a part
    slices     slices that the program is made for; the last part may have fewer
    addresses  addresses of the program's buffers
    memory     the block of x, y and scratch, then that of the tables; empty after release()
    uploads    bytes of the tables if they are not on the device yet, else 0
    """

    program: Program
    slices: int
    addresses: Mapping[Buffer, int]
    memory: list[DeviceBlock]
    uploads: int

    def release(self) -> None:
        """Release the memory."""
        self.memory.clear()


class Cuda:
    """Applies plans on a device. Thread-safe.

    memory_bytes  most device memory of the pool
    cpu           computes calls of few multiplications, and plans without passes
    cpu_work      multiplications below which cpu computes a call, and as many more for each 800 KiB
                  that it would copy; None for the device's own
    streams       concurrent calls; others wait in order of arrival
    buffer_bytes  bytes of a pinned buffer; each stream has a few
    """

    name = "cuda"
    splits_work = True
    may_wait = True

    def __init__(
        self,
        device: Device,
        *,
        memory_bytes: int,
        cpu: Backend | None = None,
        cpu_work: int | None = None,
        streams: int = _STREAMS,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        device.limit_memory(memory_bytes)
        self._device, self._limit, self._buffer_bytes = device, memory_bytes, buffer_bytes
        self._cpu = cpu or NumpyCpu()
        self.cpu_work = device.cpu_work if cpu_work is None else cpu_work
        self._streams = [StagedStream(device, buffer_bytes=buffer_bytes) for _ in range(streams)]
        self.queue = CallQueue(self._streams)
        self._programs = Recent[Program](most=_MOST_PROGRAMS, max_weight=_TABLE_BYTES)
        self._forget_tables()
        # Approximate when threads count concurrently.
        self.computed_by = Counter[str]()
        self._lock = Lock()
        self._is_loaded = False
        self._lost = ""

    @property
    def memory_taken(self) -> int:
        """Bytes of device memory that the pool has, in use or cached."""
        return self._device.memory_taken

    def on_device(self) -> Cuda:
        """Return a backend of the same device without the CPU.

        It uses the same streams, and leaves no passes to the CPU.
        """
        made = copy(self)
        made.cpu_work = 0
        return made

    def warm_up(self) -> None:
        """Load all kernels, and compile the missing ones."""
        with self._lock:
            self._check()
            if self._is_loaded:
                return
            try:
                self._cpu.warm_up()
            except Exception as error:  # noqa: BLE001 - another version of numba may raise anything
                self._cpu, _ = instead_of_compiled("auto", error)
            with self._noting_loss():
                self._device.load(every_kernel())
            self._is_loaded = True

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as `Backend` specifies."""
        self._check()
        if not y.size:
            return
        if self._is_for_device(plan, x, y):
            self._compute(self._call(plan, x, y))
        else:
            self.computed_by[self._cpu.name] += 1
            self._cpu.apply(plan, x, y)

    def bound(self, plan: Plan, x: Array, y: Array) -> Callable[[], None]:
        """Return apply(plan, x, y) for arrays that stay, as `BindsArrays` specifies."""
        if self._is_for_device(plan, x, y) or not isinstance(self._cpu, BindsArrays):
            return partial(self.apply, plan, x, y)
        run = self._cpu.bound(plan, x, y)

        def run_on_cpu() -> None:
            self._check()
            self.computed_by[self._cpu.name] += 1
            run()

        return run_on_cpu

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add every output's taps on x to y, as `Backend` specifies."""
        self._check()
        if not y.size:
            return
        if not self._pays(bands.nnz * (y.size // bands.outputs), x, y):
            self.computed_by[self._cpu.name] += 1
            self._cpu.accumulate(bands, x, y, axis=axis, carried=carried)
            return
        if axis == 0:
            x, y, axis = x[None], y[None], 1

        @cache
        def program(slices: int) -> Program:
            return dispatch.accumulation(
                bands,
                (slices, *x.shape[1:]),
                x.dtype,
                axis=axis,
                carried=carried,
                multiprocessors=self._device.multiprocessors,
            )

        self._compute(_DeviceCall(x, y, program, recurs=False, carried=carried > 0))

    def _is_for_device(self, plan: Plan, x: Array, y: Array) -> bool:
        return bool(plan.passes) and self._pays(plan.work, x, y)

    def _pays(self, work: int, x: Array, y: Array) -> bool:
        """Whether the device is faster at a call of `work` multiplications."""
        return work >= self.cpu_work + self.cpu_work * (x.nbytes + y.nbytes) // _CPU_WORK_BYTES

    def _call(self, plan: Plan, x: Array, y: Array) -> _DeviceCall:
        """Return the call that applies a plan."""
        first = dispatch.outer_axes(plan)
        # Cached per call too: some programs are too large for the shared cache.
        program = cache(partial(self._program, plan, x.dtype, y.dtype))
        x, y = (one.reshape(math.prod(one.shape[:first]), *one.shape[first:]) for one in (x, y))
        return _DeviceCall(x, y, program)

    def _compute(self, call: _DeviceCall) -> None:
        self.warm_up()
        self.computed_by[self.name] += 1
        slices = call.slices(self._buffer_bytes)
        call.program(slices)  # before the queue, so that other calls do not wait for it
        turn = self.queue.turn(partial(self._hold, call, slices), wait_s=wait_s(_WAIT_S))
        # A loss is noted before the next call gets the stream.
        with turn as (staged, held), self._noting_loss():
            _run(staged, call, held)
            if held.uploads and call.recurs:
                self._tables.keep(held.program, held.memory[-1], weight=held.uploads)

    def _hold(self, call: _DeviceCall, slices: int) -> _Held:
        """Allocate all memory of a call.

        Parts are smaller if there is not enough.
        """
        is_short = False
        while True:
            self._check()
            try:
                with self._noting_loss():
                    return self._held(call, slices)
            except MemoryError as error:
                why = str(error)
            # Not inside `except`, whose traceback refers to memory.
            if is_short and slices == 1:
                raise MemoryError(f"{why}; cuda_memory_bytes is {self._limit}")
            self._forget_tables()
            is_short, slices = True, -(-slices // 2)

    def _held(self, call: _DeviceCall, slices: int) -> _Held:
        program = call.program(slices)
        sizes = [*(slices * one for one in call.slice_bytes), *program.scratch]
        offsets, work_bytes = packed(sizes)
        table_offsets, table_bytes = packed([one.nbytes for one in program.tables])
        memory, kept = [self._device.allocate(work_bytes)], self._tables.get(program)
        uploads = table_bytes if kept is None else 0
        if kept is not None:
            memory.append(kept)
        elif uploads:
            memory.append(self._device.allocate(uploads))
        at_x, at_y, *scratch = (memory[0].ptr + one for one in offsets)
        tables = [memory[-1].ptr + one for one in table_offsets]
        addresses = {X: at_x, Y: at_y}
        addresses |= {Buffer("scratch", number): at for number, at in enumerate(scratch)}
        addresses |= {Buffer("table", number): at for number, at in enumerate(tables)}
        return _Held(program, slices, addresses, memory, uploads)

    def _program(
        self, plan: Plan, source: np.dtype[Any], result: np.dtype[Any], slices: int
    ) -> Program:
        """Return a plan's program for a number of slices."""
        key = plan, source, result, slices
        found = self._programs.get(key)
        if found is None:
            many = self._device.multiprocessors
            found = dispatch.program(plan, source, result, outer=slices, multiprocessors=many)
            self._programs.keep(key, found, weight=sum(one.nbytes for one in found.tables))
        return found

    def _forget_tables(self) -> None:
        """Release the tables on the device that no call uses."""
        most = self._limit // _TABLES_SHARE
        self._tables = Recent[DeviceBlock](most=_MOST_PROGRAMS, max_weight=most)

    def _check(self) -> None:
        if self._lost:
            raise DeviceLostError(self._lost)

    @contextmanager
    def _noting_loss(self) -> Generator[None]:
        """Record that the device is lost, so that later calls fail immediately."""
        try:
            yield
        except DeviceLostError as error:
            self._lost = self._lost or str(error)
            raise


def _run(staged: StagedStream, call: _DeviceCall, held: _Held) -> None:
    """Compute a call part by part, and wait for the device."""
    program, at = held.program, held.addresses
    try:
        if held.uploads:
            for number, table in enumerate(program.tables):
                staged.up(at[Buffer("table", number)], table)
        for first in range(0, len(call.x), held.slices):
            part = slice(first, first + held.slices)
            staged.up(at[X], call.x[part])
            if call.carried:
                staged.up(at[Y], call.y[part])
            for launch in program.launches:
                staged.stream.launch(launch, at)
            staged.down(call.y[part], at[Y])
        staged.drain()
    except BaseException:
        with contextlib.suppress(DeviceError, DeviceLostError, MemoryError):
            staged.abandon()
        raise
