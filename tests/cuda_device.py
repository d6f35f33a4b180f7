"""A device for the CUDA backend where there is no GPU."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from threading import Event, RLock
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

import cuda_compiled
from cudasim import module
from cudasim.compiler import Mode
from cudasim.module import Buffer as SimulatorBuffer
from cudasim.module import Module, SimError
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.device import Bytes, DeviceError, DeviceLostError
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Launch

SOURCES = Path(str(files("gradwire_server.backends.cuda")))

Array = npt.NDArray[Any]


@cache
def compiled(
    mode: Mode = Mode.PLAIN, some: frozenset[Kernel] | None = None, folder: Path = SOURCES
) -> Module:
    """Compile kernels, all of them unless some are named, with g++."""
    return module.compiled(folder, some or cuda_compiled.every_kernel(), mode)


class SimulatedMemory:
    """Memory of a simulated device."""

    def __init__(self, buffer: SimulatorBuffer) -> None:
        self._buffer, self.nbytes, self.address = buffer, buffer.nbytes, buffer.address


class SimulatedDevice:
    """What the CUDA backend asks of a device, on the CPU.

    multiprocessors  that it says it has
    capacity         bytes of memory; none are lent beyond
    eager            whether streams do everything at once instead of at the last moment
    most_lent        bytes that were lent at once
    sizes            bytes of each block that was ever lent
    broken           why all fails from now on; empty where it does not
    refused          why a task is refused, once; likewise
    accepted         how many are not before that one
    lock             without it streams are given nothing, and memory is not lent
    entered          set when a stream is about to be given something
    trace            what streams were given and who waited, in order: (what, stream)
    """

    name = "simulated"
    architecture = 90

    def __init__(
        self,
        module: Module,
        *,
        multiprocessors: int = dispatch.MULTIPROCESSORS,
        capacity: int = 1 << 40,
        eager: bool = False,
    ) -> None:
        self.module, self.multiprocessors, self.capacity = module, multiprocessors, capacity
        self.eager = eager
        self.lent = self.most_lent = 0
        self.sizes = list[int]()
        self.broken = self.refused = ""
        self.accepted = 0
        self.lock = RLock()
        self.entered = Event()
        self.trace = list[tuple[str, int]]()
        self.streams = 0
        self._pinned = dict[int, int]()

    def load(self, kernels: Collection[Kernel]) -> None:
        """Do nothing: the module is compiled."""

    def allocate(self, nbytes: int) -> SimulatedMemory:
        """Return memory full of NaN."""
        with self.lock:
            if self.lent + nbytes > self.capacity:
                raise MemoryError(f"{nbytes} bytes of a simulated device")
            self.lent += nbytes
            self.sizes.append(nbytes)
            self.most_lent = max(self.lent, self.most_lent)
            made = SimulatedMemory(self.module.buffer(nbytes))
            finalize(made, self._take_back, nbytes)
            return made

    def _take_back(self, nbytes: int) -> None:
        with self.lock:
            self.lent -= nbytes

    def pinned(self, nbytes: int) -> Bytes:
        """Return memory full of what no result is."""
        made = np.full(nbytes, 0xFF, np.uint8)
        self.register(made)
        return made

    def register(self, memory: Bytes) -> None:
        """Let streams copy from memory and to it, until the array is gone."""
        self.check_accepted()
        self._pinned[memory.ctypes.data] = memory.nbytes
        finalize(memory, self._pinned.pop, memory.ctypes.data)

    def check_accepted(self) -> None:
        """Raise DeviceError, once, where something is to be refused."""
        if self.refused and self.accepted:
            self.accepted -= 1
        elif self.refused:
            why, self.refused = self.refused, ""
            raise DeviceError(why)

    def check_pinned(self, memory: Bytes) -> None:
        """Raise AssertionError where a device could not copy from memory or to it."""
        at, pinned = memory.ctypes.data, list(self._pinned.items())
        assert any(first <= at and at + memory.nbytes <= first + size for first, size in pinned)

    def stream(self) -> SimulatedStream:
        """Return a stream that does everything at the last moment."""
        return SimulatedStream(self)


class SimulatedStream:
    """Does nothing before somebody waits for it: whoever does not is found out.

    Or everything at once, where the device is eager: whoever overwrites too early is found out.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._tasks = deque[Callable[[], object]]()
        self._given = self._done = 0
        self._number, device.streams = device.streams, device.streams + 1

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device."""
        self._device.check_pinned(source)
        self._give("up", partial(ctypes.memmove, address, source.ctypes.data, source.nbytes))

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        self._device.check_pinned(target)
        self._give("down", partial(ctypes.memmove, target.ctypes.data, address, target.nbytes))

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel."""
        run = partial(
            self._device.module.launch,
            launch.kernel.expression,
            launch.grid,
            launch.block,
            launch.resolved(addresses),
            shared_bytes=launch.shared_bytes,
        )
        self._give("launch", run)

    def mark(self) -> SimulatedMark:
        """Return a mark behind all tasks so far."""
        return SimulatedMark(self, self._given)

    def synchronize(self) -> None:
        """Do it all."""
        self.do(self._given)

    def do(self, until: int) -> None:
        """Do the first tasks, one stream after the other: the simulator runs one kernel at once."""
        with self._device.lock:
            self._device.trace.append(("wait", self._number))
            self._do(until)

    def _give(self, what: str, task: Callable[[], object]) -> None:
        self._device.entered.set()
        with self._device.lock:
            self._device.check_accepted()
            self._device.trace.append((what, self._number))
            self._tasks.append(task)
            self._given += 1
            if self._device.eager:
                self._do(self._given)

    def _do(self, until: int) -> None:
        if self._device.broken:
            self._done = self._given
            self._tasks.clear()
            raise DeviceLostError(self._device.broken)
        try:
            while self._done < until:
                self._done += 1
                self._tasks.popleft()()
        except SimError as error:
            self._device.broken = str(error)
            raise DeviceLostError(self._device.broken) from error


class SimulatedMark:
    """A place among the tasks of a stream."""

    def __init__(self, stream: SimulatedStream, place: int) -> None:
        self._stream, self._place = stream, place

    def wait(self) -> None:
        """Do what comes before, and nothing else."""
        self._stream.do(self._place)
