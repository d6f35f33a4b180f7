"""Streams of a real device through CuPy, or of a simulated one.

Work queued on a stream is done in order, and before settle() returns; a mark is a moment in that
order.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.compute.cases import Array
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.programs import Buffer, Launch, every_kernel

_CLOCKS = ("clocks.sm", "clocks.mem")
_NUMBERS_ONLY = ("--format=csv,noheader,nounits", "--id=0")


class Block(Protocol):
    """Memory of a device, freed with the last reference."""

    @property
    def address(self) -> int:
        """Address of its first byte."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...


class DeviceStream(Protocol):
    """A stream of a device, with its memory and its clock.

    name             of the device
    torch_device     device on which PyTorch's work is in the same order
    multiprocessors  that the device has
    facts            further facts to keep with a result
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def torch_device(self) -> str: ...  # noqa: D102

    @property
    def multiprocessors(self) -> int: ...  # noqa: D102

    @property
    def facts(self) -> dict[str, Any]: ...  # noqa: D102

    def load(self) -> None:
        """Compile all kernels and make them ready."""
        ...

    def empty(self, nbytes: int) -> Block:
        """Return new memory; raise MemoryError if there is too little."""
        ...

    def write(self, block: Block, array: Array) -> None:
        """Copy an array to the start of a block, and wait."""
        ...

    def read(self, block: Block, array: Array, *, offset: int = 0) -> None:
        """Fill an array from a block, after all earlier work."""
        ...

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel."""
        ...

    def copy(self, target: Block, source: Block) -> None:
        """Copy one block to another as large, within the device."""
        ...

    def mark(self) -> Any:
        """Return this moment of the stream."""
        ...

    def settle(self) -> None:
        """Wait until all is done."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """Return the time between two marks, both past."""
        ...

    def clocks(self) -> dict[str, int]:
        """Return the MHz of the multiprocessors and of the memory now.

        It is empty if they are unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class _CupyBlock:
    memory: Any
    nbytes: int

    @property
    def address(self) -> int:
        return int(self.memory.ptr)


class CudaStream:
    """The default stream of the first device.

    PyTorch uses it too, so that both have one order.

    cache  folder of compiled kernels
    """

    torch_device = "cuda"

    def __init__(self, cache: Path) -> None:
        cupy: Any = import_module("cupy")
        self._cuda, self._cache = cupy.cuda, cache
        self._functions = dict[str, Any]()
        runtime = self._cuda.runtime
        self._cuda.Device(0).use()
        runtime.deviceSynchronize()  # a context exists from now on
        properties = runtime.getDeviceProperties(0)
        self.name: str = properties["name"].decode()
        self.multiprocessors = int(properties["multiProcessorCount"])
        self._architecture = 10 * int(properties["major"]) + int(properties["minor"])
        self.facts = {
            "device": self.name,
            "compute_capability": self._architecture / 10,
            "multiprocessors": self.multiprocessors,
            "l2_bytes": int(properties.get("l2CacheSize", 0)),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "driver": int(runtime.driverGetVersion()),
            "runtime": int(runtime.runtimeGetVersion()),
            "nvrtc": list(self._cuda.nvrtc.getVersion()),
            "cupy": str(cupy.__version__),
        }

    def load(self) -> None:
        """Compile kernels as the server does, or load earlier results."""
        self._functions = cupy_device.functions(every_kernel(), self._architecture, self._cache)

    def empty(self, nbytes: int) -> Block:
        """Return memory, bypassing CuPy's pool."""
        try:
            return _CupyBlock(self._cuda.Memory(nbytes), nbytes)
        except self._cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(str(error)) from error

    def write(self, block: Block, array: Array) -> None:
        """Copy an array to the start of a block, and wait."""
        runtime = self._cuda.runtime
        runtime.memcpy(block.address, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)

    def read(self, block: Block, array: Array, *, offset: int = 0) -> None:
        """Fill an array with a block's bytes."""
        self.settle()
        runtime = self._cuda.runtime
        runtime.memcpy(
            array.ctypes.data,
            block.address + offset,
            array.nbytes,
            runtime.memcpyDeviceToHost,
        )

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel that was loaded."""
        self._functions[launch.kernel](launch.grid, launch.block, launch.resolved(addresses))

    def copy(self, target: Block, source: Block) -> None:
        """Copy one block to another as large, within the device."""
        runtime = self._cuda.runtime
        runtime.memcpyAsync(
            target.address, source.address, source.nbytes, runtime.memcpyDeviceToDevice, 0
        )

    def mark(self) -> Any:
        """Return this moment of the stream."""
        event = self._cuda.Event()
        event.record()
        return event

    def settle(self) -> None:
        """Wait until all is done."""
        self._cuda.runtime.deviceSynchronize()

    def seconds(self, first: Any, last: Any) -> float:
        """Return the time between two marks, both past."""
        return float(self._cuda.get_elapsed_time(first, last)) / 1e3

    def clocks(self) -> dict[str, int]:
        """Return the clocks that nvidia-smi reports."""
        command = ["nvidia-smi", f"--query-gpu={','.join(_CLOCKS)}", *_NUMBERS_ONLY]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            numbers = done.stdout.splitlines()[0].split(", ")
            return {name: int(one) for name, one in zip(_CLOCKS, numbers, strict=True)}
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return {}


class SimulatedStream:
    """Runs everything at once on the CPU.

    Its times say nothing about a GPU.

    module  runs the kernels: cudasim.module.Module
    """

    name = "simulated"
    torch_device = "cpu"
    multiprocessors = 4

    def __init__(self, module: Any) -> None:
        self._module = module
        self.facts: dict[str, Any] = {"device": "simulated: times say nothing of a GPU"}

    def load(self) -> None:
        """Do nothing: the module is compiled."""

    def empty(self, nbytes: int) -> Block:
        """Return memory full of NaN."""
        block: Block = self._module.buffer(nbytes)
        return block

    def write(self, block: Block, array: Array) -> None:
        """Copy an array to the start of a block."""
        ctypes.memmove(block.address, array.ctypes.data, array.nbytes)

    def read(self, block: Block, array: Array, *, offset: int = 0) -> None:
        """Fill an array with a block's bytes."""
        ctypes.memmove(array.ctypes.data, block.address + offset, array.nbytes)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel."""
        self._module.launch(
            launch.kernel,
            launch.grid,
            launch.block,
            launch.resolved(addresses),
        )

    def copy(self, target: Block, source: Block) -> None:
        """Copy one block to another as large."""
        ctypes.memmove(target.address, source.address, source.nbytes)

    def mark(self) -> float:
        """Return the time of the clock."""
        return time.perf_counter()

    def settle(self) -> None:
        """Do nothing: all is done."""

    def seconds(self, first: float, last: float) -> float:
        """Return the time from one mark to another."""
        return last - first

    def clocks(self) -> dict[str, int]:
        """Return nothing."""
        return {}


def put(stream: DeviceStream, arrays: Sequence[Array]) -> list[Block]:
    """Return blocks that hold arrays, of at least a byte each."""
    blocks = [stream.empty(max(1, one.nbytes)) for one in arrays]
    for block, one in zip(blocks, arrays, strict=True):
        stream.write(block, np.ascontiguousarray(one))
    return blocks
