"""A device for the CUDA backend where there is no GPU."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from threading import Event, RLock
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from cudasim import module
from cudasim.module import FORWARD, Mode, Module, SimError
from cudasim.module import Buffer as SimulatorBuffer
from gradwire_server.backends.cuda import dispatch, programs
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import Bytes, DeviceError
from gradwire_server.backends.cuda.programs import Buffer, Launch, Program
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import Plan

SOURCES = Path(str(files("gradwire_server.backends.cuda")))
# Of an H200, the device that the kernels were designed for.
MULTIPROCESSORS = 132

Array = npt.NDArray[Any]


@cache
def compiled(
    mode: Mode = Mode.PLAIN, some: frozenset[str] | None = None, folder: Path = SOURCES
) -> Module:
    kernels = some or programs.every_kernel()
    return module.compiled(folder, [(programs.source(one), one) for one in kernels], mode)


def program(
    plan: Plan,
    source: np.dtype[Any],
    result: np.dtype[Any],
    *,
    multiprocessors: int = MULTIPROCESSORS,
) -> Program:
    """Return the program for all outer slices of a plan."""
    outer = math.prod(plan.input_shape[: dispatch.outer_axes(plan)])
    return dispatch.program(plan, source, result, outer=outer, multiprocessors=multiprocessors)


def simulated_cuda(
    module: Module, *, order: int = FORWARD, multiprocessors: int = MULTIPROCESSORS
) -> Cuda:
    """Return a backend that runs the program of a whole plan where its tensors are small."""
    device = SimulatedDevice(module, order=order, multiprocessors=multiprocessors)
    return Cuda(device, memory_bytes=128 << 20, streams=1, buffer_bytes=8 << 20)


class SimulatedMemory:
    """A block of a simulated device's pool."""

    def __init__(self, buffer: SimulatorBuffer) -> None:
        self.ptr = buffer.address


class SimulatedDevice:
    """What the CUDA backend asks of a device, on the CPU.

    Its pool guards every block, poisons released ones and lends them again. Streams refuse tasks
    whose memory was released meanwhile. Kernels can write to their result only.

    order         in which the threads of a block run, as `cudasim.module` has it
    capacity      bytes of memory
    eager         whether streams do everything at once instead of at the last moment
    lent          bytes of blocks that are in use
    memory_taken  bytes of blocks that are in use or cached
    most_taken    most bytes that the pool ever had
    broken        why everything fails from now on; empty where it does not
    refused       number of the task, from now on, that is refused; 0 for none
    lock          held while a stream takes a task or does some
    entered       set when a stream is about to be given a task
    trace         what streams were given and waited for: up, launch, down, wait
    """

    name = "simulated"
    cpu_work = 0

    def __init__(
        self,
        module: Module,
        *,
        multiprocessors: int = MULTIPROCESSORS,
        order: int = FORWARD,
        capacity: int = 1 << 40,
        eager: bool = False,
    ) -> None:
        self.module, self.multiprocessors, self.order = module, multiprocessors, order
        self.capacity, self.eager = capacity, eager
        self.lent = self.memory_taken = self.most_taken = 0
        self.broken = ""
        self.refused = 0
        self.lock = RLock()
        self.entered = Event()
        self.trace = list[str]()
        self._memory_lock = RLock()
        self._limit = 0
        self._cached = defaultdict[int, list[SimulatorBuffer]](list)
        # Blocks in use in the order of their addresses, each with the number of its loan.
        self._in_use = list[tuple[int, int, SimulatorBuffer]]()
        self._loans = 0
        self.lent_pinned = dict[int, int]()

    def load(self) -> None: ...

    def limit_memory(self, nbytes: int) -> None:
        self._limit = nbytes

    def allocate(self, nbytes: int) -> SimulatedMemory:
        with self._memory_lock:
            cached = self._cached[nbytes]
            buffer = cached.pop() if cached else self._taken(nbytes)
            self.lent += nbytes
            self._loans += 1
            place = bisect(self._in_use, (buffer.address,))
            self._in_use.insert(place, (buffer.address, self._loans, buffer))
            made = SimulatedMemory(buffer)
            finalize(made, self._take_back, self._in_use[place])
            return made

    def _taken(self, nbytes: int) -> SimulatorBuffer:
        most = min(self._limit, self.capacity)
        if self.memory_taken + nbytes > most:
            self._cached.clear()
            self.memory_taken = self.lent
        if self.lent + nbytes > most:
            raise MemoryError(f"{nbytes} bytes of a simulated device beside {self.lent}")
        self.memory_taken += nbytes
        self.most_taken = max(self.most_taken, self.memory_taken)
        return self.module.buffer(nbytes, order=self.order)

    def _take_back(self, loan: tuple[int, int, SimulatorBuffer]) -> None:
        with self._memory_lock:
            self._in_use.remove(loan)
            buffer = loan[-1]
            self.lent -= buffer.nbytes
            ctypes.memset(buffer.address, 0xFF, buffer.nbytes)
            self._cached[buffer.nbytes].append(buffer)

    def loan(self, address: int, nbytes: int = 0) -> tuple[int, int, SimulatorBuffer]:
        """Return the loan that memory belongs to; AssertionError where it is none."""
        with self._memory_lock:
            place = bisect(self._in_use, (address + 1,)) - 1
            if place >= 0:
                found = self._in_use[place]
                if address + nbytes <= found[0] + found[-1].nbytes:
                    return found
        raise AssertionError("memory is used that no call holds")

    def pinned(self, nbytes: int) -> Bytes:
        """Return memory full of what no result is."""
        made = np.full(nbytes, 0xFF, np.uint8)
        self.lent_pinned[made.ctypes.data] = nbytes
        finalize(made, self.lent_pinned.pop, made.ctypes.data)
        return made

    def stream(self) -> SimulatedStream:
        return SimulatedStream(self)


class SimulatedStream:
    """Does nothing before somebody waits for it: whoever does not is found out.

    Or everything at once, where the device is eager: whoever overwrites too early is found out.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._tasks = deque[Callable[[], object]]()
        self._given = self._done = 0

    def up(self, address: int, source: Bytes) -> None:
        self._copy("up", address, source, (address, source.ctypes.data))

    def down(self, target: Bytes, address: int) -> None:
        self._copy("down", address, target, (target.ctypes.data, address))

    def _copy(self, what: str, address: int, memory: Bytes, places: tuple[int, int]) -> None:
        at, pinned = memory.ctypes.data, list(self._device.lent_pinned.items())
        assert any(first <= at and at + memory.nbytes <= first + size for first, size in pinned)
        copy = partial(ctypes.memmove, *places, memory.nbytes)
        self._give(what, [(address, memory.nbytes)], copy)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        device, given = self._device, launch.resolved(addresses)
        used = [(addresses[one], 0) for one in launch.arguments if isinstance(one, Buffer)]
        only_read = [device.loan(*one)[-1] for one in used[1:]]

        def run() -> None:
            for one in only_read:
                one.protect()
            try:
                where = launch.kernel, launch.grid, launch.block
                device.module.launch(*where, given, order=device.order)
            finally:
                for one in only_read:
                    one.protect(writable=True)

        self._give("launch", used, run)

    def mark(self, *, blocking: bool) -> Callable[[], None]:
        """Return a function that does all tasks so far, and nothing else."""
        return partial(self.do, self._given)

    def do(self, until: int) -> None:
        """Do the first tasks, one stream after the other: the simulator runs one kernel at once."""
        device = self._device
        with device.lock:
            device.trace.append("wait")
            if device.broken:
                self._done = self._given
                self._tasks.clear()
                raise DeviceLostError(device.broken)
            try:
                while self._done < until:
                    self._done += 1
                    self._tasks.popleft()()
            except SimError as error:
                device.broken = str(error)
                raise DeviceLostError(device.broken) from error

    def _give(self, what: str, used: list[tuple[int, int]], task: Callable[[], object]) -> None:
        """Take a task; used are the addresses and sizes of the memory that it uses."""
        loans = [self._device.loan(*one) for one in used]

        def run() -> None:
            assert [self._device.loan(*one) for one in used] == loans, "memory was lent again"
            task()

        device = self._device
        device.entered.set()
        with device.lock:
            if device.refused:
                device.refused -= 1
                if not device.refused:
                    raise DeviceError("invalid argument")
            device.trace.append(what)
            self._tasks.append(run)
            self._given += 1
            if device.eager:
                self.do(self._given)


def simulated(**more: Any) -> SimulatedDevice:
    return SimulatedDevice(compiled(), **more)
