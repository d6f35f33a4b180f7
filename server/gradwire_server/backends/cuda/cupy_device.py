"""The current CUDA device, through CuPy.

A process computes on one device, the first that CUDA_VISIBLE_DEVICES leaves. CuPy is optional and
takes half a second to import, so it is imported only when a device is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from gradwire_server.backends.cache_files import forget_others, user_folder
from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.device import Bytes, DeviceBlock, DeviceError
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Launch
from gradwire_server.errors import DeviceLostError

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
_NO_DEVICE = 100  # cudaErrorNoDevice

# Errors after which, by CUDA's documentation, every later call fails until the process ends, or
# which report lost hardware or a lost server. The driver's errors have the runtime's numbers.
_LASTING = frozenset(
    (
        *(3, 4, 46),  # no initialization, unloading, devices unavailable
        *(_NO_DEVICE, 101, 201),  # no device, invalid device, invalid context
        *(214, 220, 226),  # uncorrectable ECC, uncorrectable NVLink, contained
        *(700, 702, 709, 710),  # illegal address, launch timeout, context destroyed, assert
        *(714, 715, 716),  # hardware stack error, illegal instruction, misaligned address
        *(717, 718, 719, 721),  # invalid address space, invalid pc, launch failure, tensor memory
        *(806, 810, 911, 999),  # lost MPS server, client ended by it, external device, unknown
    )
)


def check() -> int:
    """Return the number of devices.

    Raises ImportError naming what is missing: CuPy, NVRTC, the driver or a device.
    """
    if find_spec("cupy") is None:
        raise ImportError(
            'CuPy is not installed; install it with pip install "gradwire[cuda13]", or '
            'gradwire[cuda12] for a driver of CUDA 12; in a checkout ".[cuda13]" or ".[cuda12]"'
        )
    build.check()
    runtime = import_module("cupy.cuda").runtime
    if not runtime.driverGetVersion():
        raise ImportError("there is no NVIDIA driver (libcuda.so.1)")
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status != _NO_DEVICE:
            raise ImportError(str(error)) from error
        count = 0
    if not count:
        raise ImportError("the NVIDIA driver sees no device")
    return int(count)


def cubins(cache_dir: str) -> Path:
    """Return the folder of compiled kernels.

    cache_dir is empty for the user's cache folder.
    """
    return Path(cache_dir) / "cuda" if cache_dir else user_folder("cuda")


def functions(kernels: Collection[Kernel], architecture: int, cache: Path) -> dict[Kernel, Any]:
    """Load kernels onto the current device.

    Kernels that the cache lacks are compiled.
    """
    found = dict[Kernel, Any]()
    for source, expressions in build.by_source(kernels).items():
        cubin = build.cubin(source, expressions, architecture, cache)
        with NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin.code)
            file.flush()
            module = import_module("cupy").RawModule(path=file.name)
            for expression in expressions:
                # RawKernel takes no stream, but its function does.
                function = module.get_function(cubin.lowered[expression]).kernel
                found[Kernel(source, expression)] = function
    forget_others(cache / build.version())
    return found


def translated(error: Any, *, fails: Callable[[], bool]) -> Exception:
    """Return an error of CUDA as DeviceLostError, MemoryError or DeviceError.

    fails  waits for all work of the device and returns whether it fails; called after transient
           errors, because the caller then releases memory
    """
    if error.status in _LASTING or fails():
        return DeviceLostError(str(error))
    return (MemoryError if error.status == _OUT_OF_MEMORY else DeviceError)(str(error))


class _Translating:
    """Context that translates CUDA's errors to those of the protocol.

    runtime, errors  CuPy's runtime and its classes of errors
    """

    def __init__(self, runtime: Any, errors: tuple[type[Exception], ...]) -> None:
        self._runtime, self._errors = runtime, errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._errors):
            raise translated(error, fails=self._fails) from error

    def _fails(self) -> bool:
        """Wait for all work of the device; return whether it fails."""
        try:
            self._runtime.deviceSynchronize()
        except self._errors:
            return True
        return False


class CupyDevice:
    """The current device. Raises ImportError if there is none, as check() does.

    cache_dir  folder in which compiled kernels are cached; empty for the user's cache folder
    """

    # An H100 beside a Xeon: a call takes 100 us and 0.12 ns for each byte that is copied to or from
    # pinned memory; one core does 8000 to 13000 multiplications in a microsecond (docs/cuda.md).
    cpu_work = 1 << 20

    def __init__(self, *, cache_dir: str = "") -> None:
        check()
        self._cupy: Any = import_module("cupy")
        cuda = self._cupy.cuda
        errors = cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError
        self.translating = _Translating(cuda.runtime, errors)
        self._cache = cubins(cache_dir)
        self._functions = dict[Kernel, Any]()
        with self.translating:
            self._pool = cuda.MemoryPool()
            properties = cuda.runtime.getDeviceProperties(cuda.runtime.getDevice())
        self.name: str = properties["name"].decode()
        self._architecture = 10 * int(properties["major"]) + int(properties["minor"])
        self.multiprocessors = int(properties["multiProcessorCount"])

    @property
    def memory_taken(self) -> int:
        """Bytes that CuPy's pool has."""
        return int(self._pool.total_bytes())

    def load(self, kernels: Collection[Kernel]) -> None:
        """Compile kernels, or find them in the cache, and load them."""
        with self.translating:
            self._functions |= functions(kernels, self._architecture, self._cache)

    def limit_memory(self, nbytes: int) -> None:
        """Set the limit of CuPy's pool."""
        with self.translating:
            self._pool.set_limit(size=nbytes)

    def allocate(self, nbytes: int) -> DeviceBlock:
        """Return a block of CuPy's pool."""
        with self.translating:
            found: DeviceBlock = self._pool.malloc(nbytes)
        return found

    def pinned(self, nbytes: int) -> Bytes:
        """Return page-locked host memory, which no pool holds."""
        memory = self._cupy.cuda.pinned_memory
        with self.translating:
            pointer = memory.PinnedMemoryPointer(memory.PinnedMemory(nbytes), 0)
        return np.frombuffer(pointer, np.uint8, nbytes)

    def stream(self) -> CupyStream:
        """Return a stream that does not wait for the default stream."""
        with self.translating:
            return CupyStream(self, self._cupy.cuda, self._functions)


class CupyStream:
    """A stream of the current device."""

    def __init__(self, device: CupyDevice, cuda: Any, functions: Mapping[Kernel, Any]) -> None:
        self._translating, self._functions = device.translating, functions
        self._runtime = cuda.runtime
        self._event = partial(cuda.Event, disable_timing=True)
        self._stream = cuda.Stream(non_blocking=True)

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device."""
        self._copy(address, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice)

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        self._copy(target.ctypes.data, address, target.nbytes, self._runtime.memcpyDeviceToHost)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Launch a loaded kernel."""
        function, arguments = self._functions[launch.kernel], launch.resolved(addresses)
        with self._translating:
            function(launch.grid, launch.block, arguments, 0, self._stream)

    def mark(self, *, blocking: bool) -> Callable[[], None]:
        """Record an event; return a function that waits for it."""
        with self._translating:
            event = self._event(block=blocking)
            event.record(self._stream)

        def wait() -> None:
            with self._translating:
                event.synchronize()

        return wait

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        with self._translating:
            self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)


# Opens the current device; cache_dir is a keyword argument.
open_device = CupyDevice
