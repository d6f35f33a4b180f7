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
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Self

import ml_dtypes
import numpy as np

from gradwire_server.backends import Backend, instead_of_compiled
from gradwire_server.backends.call_deadline import wait_s as wait_of_call_s
from gradwire_server.backends.cuda import dispatch, kernels
from gradwire_server.backends.cuda.device import Array, Device, DeviceError, Memory
from gradwire_server.backends.cuda.programs import Buffer, Program, packed
from gradwire_server.backends.cuda.staging import CallQueue, StagedStream
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import BandedMap, Pass, Plan
from gradwire_server.recent import Recent

# Calls that compute at once; each has a thread that copies for it.
_STREAMS = 4
# Of a pinned buffer: what a processor's second-level cache holds, and long against a launch.
_BUFFER_BYTES = 2 << 20
# Of buffers in one allocation: a line of the device's cache.
_ALIGNMENT = 128
# Programs that are cached, most bytes of their tables on the host, and the share of the limit that
# tables on the device may have.
_MOST_PROGRAMS = 512
_TABLE_BYTES = 64 << 20
_TABLES_SHARE = 8

_STORAGE_TYPES = [np.dtype(one) for one in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]

_X, _Y = Buffer("x"), Buffer("y")


@dataclass(eq=False, slots=True)
class _Call:
    """Arrays x[outer, ...] and y[outer, ...], and what is done to each outer slice.

    make      makes the program of so many slices
    plan      that is applied; None where programs are not worth caching
    carried   whether y is read too
    programs  of this call, by slices
    """

    x: Array
    y: Array
    make: Callable[[int], Program]
    plan: Plan | None = None
    carried: bool = False
    programs: dict[int, Program] = field(default_factory=dict[int, Program])

    @classmethod
    def of_plan(cls, plan: Plan, x: Array, y: Array, *, multiprocessors: int) -> Self:
        """Return the call that applies a plan: axes before its first pass are outer."""
        first = min((one.axis for one in plan.passes), default=len(plan.input_shape))
        outer = math.prod(plan.input_shape[:first])
        passes = tuple(Pass(one.axis - first, one.map) for one in plan.passes)
        inner = Plan(plan.input_shape[first:], plan.output_shape[first:], passes, plan.fill)

        def make(slices: int) -> Program:
            return dispatch.program(
                inner, x.dtype, y.dtype, copies=slices, multiprocessors=multiprocessors
            )

        x_slices = x.reshape(outer, *inner.input_shape)
        return cls(x_slices, y.reshape(outer, *inner.output_shape), make, plan)

    @classmethod
    def of_bands(
        cls, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int, multiprocessors: int
    ) -> Self:
        """Return the call that adds the taps of a map along an axis."""
        if axis == 0:
            x, y, axis = x[None], y[None], 1

        def make(slices: int) -> Program:
            return dispatch.accumulation(
                bands,
                (slices, *x.shape[1:]),
                x.dtype,
                axis=axis,
                carried=carried,
                multiprocessors=multiprocessors,
            )

        return cls(x, y, make, carried=carried > 0)

    @property
    def slice_bytes(self) -> tuple[int, int]:
        """Bytes of x and of y for one outer slice."""
        return self.x.nbytes // len(self.x), self.y.nbytes // len(self.y)

    def slices(self, part_bytes: int) -> int:
        """Return the slices of a part: equal parts, of so many bytes at most or of one slice."""
        most = max(1, part_bytes // max(self.slice_bytes))
        parts = -(-len(self.x) // most)
        return -(-len(self.x) // parts)


@dataclass(slots=True)
class _Held:
    """The program and the device memory of a call.

    program    of a part
    slices     that the program is made for; the last part may have fewer
    addresses  of the program's buffers
    memory     the block of x, y and scratch, then that of the tables; empty after release()
    uploads    bytes of the tables where they are not on the device yet; else 0
    """

    program: Program
    slices: int
    addresses: Mapping[Buffer, int]
    memory: list[Memory]
    uploads: int

    def release(self) -> None:
        """Let go of the memory."""
        self.memory.clear()


class Cuda:
    """Applies plans on a device. Threads may share it.

    memory_bytes  most device memory of the pool
    cpu           computes calls of few multiplications, and plans without passes
    cpu_work      multiplications below which cpu computes a call; None for the device's own
    streams       calls that compute at once; others wait in order of arrival
    buffer_bytes  of a pinned buffer; each stream has a few
    wait_s        time that a call may wait for device memory that other calls have; less where
                  its deadline is nearer
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
        wait_s: float = 30.0,
    ) -> None:
        device.limit_memory(memory_bytes)
        self._device, self._limit = device, memory_bytes
        self._cpu = cpu or NumpyCpu()
        self.cpu_work = device.cpu_work if cpu_work is None else cpu_work
        self._streams = [StagedStream(device, buffer_bytes=buffer_bytes) for _ in range(streams)]
        self._queue = CallQueue(self._streams)
        self._buffer_bytes, self._wait_s = buffer_bytes, wait_s
        self._programs = Recent[tuple[Plan, Program]](most=_MOST_PROGRAMS, max_weight=_TABLE_BYTES)
        self._forget_tables()
        # Approximate where threads count at once.
        self.computed_by = Counter[str]()
        self._lock = Lock()
        self._is_warm = False
        self._lost = ""

    @property
    def memory_taken(self) -> int:
        """Bytes of device memory that the pool has, in use or cached."""
        return self._device.memory_taken

    @property
    def calls_waiting(self) -> int:
        """Calls that wait for a stream or for memory."""
        return self._queue.waiting

    def warm_up(self) -> None:
        """Load all kernels, compiling those that are not cached, and use every stream once."""
        with self._lock:
            self._check()
            if not self._is_warm:
                try:
                    self._cpu.warm_up()
                except Exception as error:  # noqa: BLE001 - whatever another version of numba raises
                    self._cpu, _ = instead_of_compiled("auto", error)
                every = {one for dtype in _STORAGE_TYPES for one in kernels.every(dtype)}
                with self._noting_loss():
                    self._device.load(sorted(every))
                    with contextlib.suppress(MemoryError):  # later calls may find some
                        self._use_streams()
                self._is_warm = True

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says."""
        self._check()
        if not y.size:
            return
        if not plan.passes or plan.work < self.cpu_work:
            self.computed_by[self._cpu.name] += 1
            self._cpu.apply(plan, x, y)
            return
        many = self._device.multiprocessors
        self._compute(_Call.of_plan(plan, x, y, multiprocessors=many))

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, as the protocol of backends says."""
        self._check()
        if not y.size:
            return
        if bands.nnz * (y.size // bands.outputs) < self.cpu_work:
            self.computed_by[self._cpu.name] += 1
            self._cpu.accumulate(bands, x, y, axis=axis, carried=carried)
            return
        many = self._device.multiprocessors
        call = _Call.of_bands(bands, x, y, axis=axis, carried=carried, multiprocessors=many)
        self._compute(call)

    def _compute(self, call: _Call) -> None:
        self.warm_up()
        self.computed_by[self.name] += 1
        slices = call.slices(self._buffer_bytes)
        self._program(call, slices)  # not in the queue, where other calls would wait for it
        hold = partial(self._hold, call, slices)
        turn = self._queue.turn(hold, wait_s=wait_of_call_s(self._wait_s))
        with self._noting_loss(), turn as (staged, held):
            with self._noting_loss():  # before the next call has the stream
                _run(staged, call, held)
            if held.uploads and call.plan is not None:
                self._tables.keep(held.program, held.memory[-1], weight=held.uploads)

    def _use_streams(self) -> None:
        """Compute one number on every stream."""
        one = np.ones(1, np.float16)
        plan = Plan(one.shape, one.shape, ())
        for staged in self._streams:
            y = np.empty(1, np.float32)
            call = _Call.of_plan(plan, one, y, multiprocessors=self._device.multiprocessors)
            _run(staged, call, self._hold(call, 1))

    def _hold(self, call: _Call, slices: int) -> _Held:
        """Allocate all that a call needs. Parts are smaller where there is not enough for them."""
        is_short = False
        while True:
            self._check()
            try:
                return self._held(call, slices)
            except MemoryError as error:
                if is_short and slices == 1:
                    raise MemoryError(f"{error}; cuda_memory_bytes is {self._limit}") from error
            self._forget_tables()
            is_short, slices = True, -(-slices // 2)

    def _held(self, call: _Call, slices: int) -> _Held:
        program = self._program(call, slices)
        sizes = [*(slices * one for one in call.slice_bytes), *program.scratch]
        offsets, work_bytes = packed(sizes, alignment=_ALIGNMENT)
        tables = [one.nbytes for one in program.tables]
        table_offsets, table_bytes = packed(tables, alignment=_ALIGNMENT)
        kept = self._tables.get(program)
        there = [] if kept is None else [kept]
        uploads = 0 if there else table_bytes
        missing = [work_bytes, table_bytes] if uploads else [work_bytes]
        memory = [*(self._device.allocate(one) for one in missing), *there]
        at_x, at_y, *scratch = (memory[0].ptr + one for one in offsets)
        addresses = {_X: at_x, _Y: at_y}
        addresses |= {Buffer("scratch", number): at for number, at in enumerate(scratch)}
        base = memory[-1].ptr
        addresses |= {Buffer("table", number): base + at for number, at in enumerate(table_offsets)}
        return _Held(program, slices, addresses, memory, uploads)

    def _program(self, call: _Call, slices: int) -> Program:
        """Return a call's program of so many slices."""
        key = (id(call.plan), call.x.dtype.num, call.y.dtype.num, slices)
        kept = None if call.plan is None else self._programs.get(key)
        found = call.programs.get(slices) or (kept and kept[1])
        if found is None:
            found = call.programs[slices] = call.make(slices)
            if call.plan is not None:
                # With the plan, so that no other object gets its identity.
                weight = sum(one.nbytes for one in found.tables)
                self._programs.keep(key, (call.plan, found), weight=weight)
        return found

    def _forget_tables(self) -> None:
        """Release the tables on the device that no call uses."""
        most = self._limit // _TABLES_SHARE
        self._tables = Recent[Memory](most=_MOST_PROGRAMS, max_weight=most)

    def _check(self) -> None:
        if self._lost:
            raise DeviceLostError(self._lost)

    @contextmanager
    def _noting_loss(self) -> Generator[None]:
        """Have later calls fail at once where the device is lost."""
        try:
            yield
        except DeviceLostError as error:
            self._lost = self._lost or str(error)
            raise


def _run(staged: StagedStream, call: _Call, held: _Held) -> None:
    """Compute a call part by part; the device is done with it afterwards."""
    program, at = held.program, held.addresses
    try:
        if held.uploads:
            for number, table in enumerate(program.tables):
                staged.up(at[Buffer("table", number)], table)
        for first in range(0, len(call.x), held.slices):
            part = slice(first, first + held.slices)
            staged.up(at[_X], call.x[part])
            if call.carried:
                staged.up(at[_Y], call.y[part])
            for launch in program.launches:
                staged.stream.launch(launch, at)
            staged.down(call.y[part], at[_Y])
        staged.drain()
    except BaseException:
        with contextlib.suppress(DeviceError, DeviceLostError):
            staged.abandon()
        raise
