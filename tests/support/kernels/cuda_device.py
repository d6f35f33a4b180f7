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

from cudasim import module
from cudasim.compiler import Mode
from cudasim.module import Buffer as SimulatorBuffer
from cudasim.module import Module, SimError
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.device import Bytes, DeviceError
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Launch, every_kernel
from gradwire_server.errors import DeviceLostError

SOURCES = Path(str(files("gradwire_server.backends.cuda")))

Array = npt.NDArray[Any]


@cache
def compiled(
    mode: Mode = Mode.PLAIN, some: frozenset[Kernel] | None = None, folder: Path = SOURCES
) -> Module:
    return module.compiled(folder, some or every_kernel(), mode)


class SimulatedMemory:
    """A block of a simulated device's pool."""

    def __init__(self, buffer: SimulatorBuffer) -> None:
        self.ptr = buffer.address


class SimulatedDevice:
    """What the CUDA backend asks of a device, on the CPU.

    Its pool poisons released blocks and lends them again. Streams refuse tasks whose memory was
    released meanwhile.

    multiprocessors  that it says it has
    capacity         bytes of memory
    eager            whether streams do everything at once instead of at the last moment
    lent             bytes of blocks that are in use
    most_taken       most bytes that the pool ever had, in use or cached
    sizes            bytes of each block that the pool ever took from the device
    broken           why everything fails from now on; empty where it does not
    refused          why a task is refused, once; likewise
    accepted         tasks that are accepted before that one
    lock             held while a stream takes a task or does some
    entered          set when a stream is about to be given a task
    trace            tasks given to streams, and waits, in order: (what, stream)
    """

    name = "simulated"
    cpu_work = 0

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
        self.lent = self.most_taken = 0
        self.sizes = list[int]()
        self.broken = self.refused = ""
        self.accepted = 0
        self.lock = RLock()
        self.entered = Event()
        self.trace = list[tuple[str, int]]()
        self.streams = 0
        self._memory_lock = RLock()
        self._limit = 0
        self._cached = list[SimulatorBuffer]()
        self._in_use = dict[int, tuple[int, int]]()
        self._loans = 0
        self._pinned = dict[int, int]()

    @property
    def memory_taken(self) -> int:
        return self.lent + sum(one.nbytes for one in self._cached)

    def load(self, kernels: Collection[Kernel]) -> None: ...

    def limit_memory(self, nbytes: int) -> None:
        self._limit = nbytes

    def allocate(self, nbytes: int) -> SimulatedMemory:
        with self._memory_lock:
            buffer = next((one for one in self._cached if one.nbytes == nbytes), None)
            if buffer is None:
                most = min(self._limit, self.capacity)
                if self.memory_taken + nbytes > most:
                    self._cached.clear()
                if self.lent + nbytes > most:
                    raise MemoryError(f"{nbytes} bytes of a simulated device beside {self.lent}")
                buffer = self.module.buffer(nbytes)
                self.sizes.append(nbytes)
            else:
                self._cached.remove(buffer)
            self.lent += nbytes
            self.most_taken = max(self.most_taken, self.memory_taken)
            self._loans += 1
            self._in_use[buffer.address] = nbytes, self._loans
            made = SimulatedMemory(buffer)
            finalize(made, self._take_back, buffer)
            return made

    def _take_back(self, buffer: SimulatorBuffer) -> None:
        with self._memory_lock:
            del self._in_use[buffer.address]
            self.lent -= buffer.nbytes
            ctypes.memset(buffer.address, 0xFF, buffer.nbytes)
            self._cached.append(buffer)

    def loan(self, address: int, nbytes: int) -> int:
        """Return the number of the loan that memory belongs to; AssertionError where it is none."""
        for first, (size, number) in list(self._in_use.items()):
            if first <= address and address + nbytes <= first + size:
                return number
        raise AssertionError("memory is used that no call holds")

    def pinned(self, nbytes: int) -> Bytes:
        """Return memory full of what no result is."""
        made = np.full(nbytes, 0xFF, np.uint8)
        self._pinned[made.ctypes.data] = nbytes
        finalize(made, self._pinned.pop, made.ctypes.data)
        return made

    def check_accepted(self) -> None:
        """Raise DeviceError, once, where something is to be refused."""
        if self.refused and self.accepted:
            self.accepted -= 1
        elif self.refused:
            why, self.refused = self.refused, ""
            raise DeviceError(why)

    def check_pinned(self, memory: Bytes) -> None:
        at, pinned = memory.ctypes.data, list(self._pinned.items())
        assert any(first <= at and at + memory.nbytes <= first + size for first, size in pinned)

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
        self._number, device.streams = device.streams, device.streams + 1

    def up(self, address: int, source: Bytes) -> None:
        self._device.check_pinned(source)
        places = (address, source.ctypes.data, source.nbytes)
        self._give("up", [(address, source.nbytes)], ctypes.memmove, *places)

    def down(self, target: Bytes, address: int) -> None:
        self._device.check_pinned(target)
        places = (target.ctypes.data, address, target.nbytes)
        self._give("down", [(address, target.nbytes)], ctypes.memmove, *places)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        given, run = launch.resolved(addresses), self._device.module.launch
        used = [(addresses[one], 0) for one in launch.arguments if isinstance(one, Buffer)]
        what = (launch.kernel.expression, launch.grid, launch.block, given)
        self._give("launch", used, run, *what)

    def mark(self, *, blocking: bool) -> Callable[[], None]:
        """Return a function that does all tasks so far, and nothing else."""
        return partial(self.do, self._given)

    def do(self, until: int) -> None:
        """Do the first tasks, one stream after the other: the simulator runs one kernel at once."""
        with self._device.lock:
            self._device.trace.append(("wait", self._number))
            self._do(until)

    def _give(
        self,
        what: str,
        used: Collection[tuple[int, int]],
        task: Callable[..., object],
        *arguments: object,
    ) -> None:
        """Take a task; used are the addresses and sizes of the memory that it uses."""
        loans = [self._device.loan(*one) for one in used]

        def run() -> None:
            assert [self._device.loan(*one) for one in used] == loans, "memory was lent again"
            task(*arguments)

        self._device.entered.set()
        with self._device.lock:
            self._device.check_accepted()
            self._device.trace.append((what, self._number))
            self._tasks.append(run)
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
