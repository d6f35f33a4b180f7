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
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from gradwire_server.backends import Backend, BindsArrays, instead_of_compiled
from gradwire_server.backends.call_deadline import wait_s
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.device import Array, Device, DeviceError
from gradwire_server.backends.cuda.programs import Program, X, Y
from gradwire_server.backends.cuda.staging import CallQueue, Memory, StagedStream
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
# Fraction of the limit, as its divisor, that a part's input or result takes at most.
_PARTS = 16
# Most cached programs, most bytes of their tables, and the fraction of the limit (its divisor) for
# tables on the device.
_MOST_PROGRAMS = 512
_TABLE_BYTES = 64 << 20
_TABLES_SHARE = 8
# Time that a call may wait for device memory held by other calls; less with a nearer deadline.
_WAIT_S = 30.0


@dataclass(eq=False, slots=True)
class _Loaded:
    """A program for some outer slices.

    tables  tables on the device, once a call has copied them
    """

    program: Program
    slices: int
    tables: Memory = field(default_factory=Memory)

    def run(self, staged: StagedStream, memory: Memory, x: Array, y: Array) -> None:
        """Compute y[outer, ...] from x[outer, ...], part by part."""
        at = {place: block.ptr for place, block in memory.items()}
        try:
            for place, table in self.program.tables.items():
                if memory[place] is not self.tables.get(place):
                    staged.up(at[place], table)
            for first in range(0, len(x), self.slices):
                part = slice(first, first + self.slices)
                staged.up(at[X], x[part])
                for launch in self.program.launches:
                    staged.stream.launch(launch, at)
                staged.down(y[part], at[Y])
            staged.drain()
        except BaseException:
            with contextlib.suppress(DeviceError, DeviceLostError, MemoryError):
                staged.abandon()
            raise
        # Of calls at once, the first one's stay.
        for place in self.program.tables:
            self.tables.setdefault(place, memory[place])


class Cuda:
    """Applies plans on a device. Thread-safe.

    memory_bytes  most device memory of the pool
    cpu           computes calls of few multiplications, sums, and plans without passes
    cpu_work      multiplications below which cpu computes a call, and as many more for each 800 KiB
                  that it would copy
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
        streams: int = _STREAMS,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        device.limit_memory(memory_bytes)
        self._device, self._limit = device, memory_bytes
        self._part_bytes = min(buffer_bytes, memory_bytes // _PARTS)
        self._cpu = cpu or NumpyCpu()
        self.cpu_work = device.cpu_work
        self.queue = CallQueue([StagedStream(device, buffer_bytes) for _ in range(streams)])
        table_bytes = min(_TABLE_BYTES, memory_bytes // _TABLES_SHARE)
        self._programs = Recent[_Loaded](most=_MOST_PROGRAMS, max_weight=table_bytes)
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
                self._device.load()
            self._is_loaded = True

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as `Backend` specifies."""
        if not self._is_for_device(plan, x, y):
            self._on_cpu(partial(self._cpu.apply, plan, x, y))
            return
        first = dispatch.outer_axes(plan)
        x, y = (one.reshape(math.prod(one.shape[:first]), *one.shape[first:]) for one in (x, y))
        loaded = self._loaded(plan, x, y)
        self.warm_up()
        self.computed_by[self.name] += 1
        turn = self.queue.turn(partial(self._allocate, loaded, x, y), wait_s=wait_s(_WAIT_S))
        # A loss is noted before the next call gets the stream.
        with turn as (staged, memory), self._noting_loss():
            loaded.run(staged, memory, x, y)

    def bound(self, plan: Plan, x: Array, y: Array) -> Callable[[], None]:
        """Return apply(plan, x, y) for arrays that stay, as `BindsArrays` specifies."""
        if self._is_for_device(plan, x, y) or not isinstance(self._cpu, BindsArrays):
            return partial(self.apply, plan, x, y)
        return partial(self._on_cpu, self._cpu.bound(plan, x, y))

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add every output's taps on x to y, as `Backend` specifies.

        The CPU does: sums would have to be copied to the device and back for each piece of input.
        """
        self._on_cpu(partial(self._cpu.accumulate, bands, x, y, axis=axis, carried=carried))

    def _on_cpu(self, run: Callable[[], None]) -> None:
        self._check()
        self.computed_by[self._cpu.name] += 1
        run()

    def _is_for_device(self, plan: Plan, x: Array, y: Array) -> bool:
        """Whether there is work for passes, and the device is faster."""
        light = self.cpu_work + self.cpu_work * (x.nbytes + y.nbytes) // _CPU_WORK_BYTES
        return bool(y.size and plan.passes) and plan.work >= light

    def _loaded(self, plan: Plan, x: Array, y: Array) -> _Loaded:
        """Return a plan's program for equal parts along the outer axis."""
        count = len(x)
        most = max(1, self._part_bytes // (max(x.nbytes, y.nbytes) // count))
        slices = -(-count // -(-count // most))
        key = plan, x.dtype, y.dtype, slices
        found = self._programs.get(key)
        if found is None:
            many = self._device.multiprocessors
            made = dispatch.program(plan, x.dtype, y.dtype, outer=slices, multiprocessors=many)
            found = _Loaded(made, slices)
            weight = sum(one.nbytes for one in made.tables.values())
            self._programs.keep(key, found, weight=weight)
        return found

    def _allocate(self, loaded: _Loaded, x: Array, y: Array) -> Memory:
        """Allocate all memory of a call.

        Other programs are forgotten if there is not enough.
        """
        sizes = {place: one.nbytes // len(one) * loaded.slices for place, one in ((X, x), (Y, y))}
        tables = {place: one.nbytes for place, one in loaded.program.tables.items()}
        sizes |= {**loaded.program.scratch, **tables}
        why = ""
        for _ in range(2):
            self._check()
            try:
                with self._noting_loss():
                    return {
                        place: loaded.tables.get(place) or self._device.allocate(nbytes)
                        for place, nbytes in sizes.items()
                    }
            except MemoryError as error:
                why = str(error)
            # Not inside `except`, whose traceback refers to memory.
            self._programs.clear()
        raise MemoryError(f"{why}; cuda_memory_bytes is {self._limit}")

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
