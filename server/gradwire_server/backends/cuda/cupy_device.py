"""The current CUDA device, through CuPy.

A process computes on one device, the first that CUDA_VISIBLE_DEVICES leaves. CuPy is optional and
takes half a second to import, so it is imported only when a device is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from gradwire_server.backends.cache_files import forget_others, user_folder
from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.device import Bytes, DeviceBlock, DeviceError
from gradwire_server.backends.cuda.programs import Buffer, Launch, every_kernel
from gradwire_server.errors import DeviceLostError

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY

# Errors after which, by CUDA's documentation, every later call fails until the process ends, or
# which report lost hardware or a lost server. The driver's errors have the runtime's numbers.
_LASTING = frozenset(
    (
        *(3, 4, 46),  # no initialization, unloading, devices unavailable
        *(100, 101, 201),  # no device, invalid device, invalid context
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
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise ImportError(str(error)) from error


def cubins(cache_dir: str) -> Path:
    """Return the folder of compiled kernels.

    cache_dir is empty for the user's cache folder.
    """
    return Path(cache_dir) / "cuda" if cache_dir else user_folder("cuda")


def functions(kernels: Iterable[str], architecture: int, cache: Path) -> dict[str, Any]:
    """Load kernels onto the current device.

    They are compiled unless they are in the cache.
    """
    cubin = build.cubin(kernels, architecture, cache)
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin.code)
        file.flush()
        module = import_module("cupy").RawModule(path=file.name)
        # RawKernel takes no stream, but its function does.
        lowered = cubin.lowered.items()
        found = {kernel: module.get_function(name).kernel for kernel, name in lowered}
    forget_others(cache / build.version())
    return found


class Translating:
    """Context that raises CUDA's errors as DeviceLostError, MemoryError or DeviceError.

    runtime, errors  CuPy's runtime and its classes of errors
    """

    def __init__(self, runtime: Any, errors: tuple[type[Exception], ...]) -> None:
        self._runtime, self._errors = runtime, errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._errors):
            raise self._translated(error) from error

    def _translated(self, error: Any) -> Exception:
        if error.status in _LASTING:
            return DeviceLostError(str(error))
        try:
            # The caller releases memory, so the device must have completed all its work.
            self._runtime.deviceSynchronize()
        except self._errors:
            return DeviceLostError(str(error))
        return (MemoryError if error.status == _OUT_OF_MEMORY else DeviceError)(str(error))


class CupyDevice:
    """The current device. Raises ImportError if there is none, as check() does.

    cache_dir  folder in which compiled kernels are cached; empty for the user's cache folder
    """

    # An H100 beside a Xeon: a call takes 100 us and 0.12 ns for each byte that is copied to or from
    # pinned memory; one core does 8000 to 13000 multiplications in a microsecond (docs/cuda.md).
    cpu_work = 1 << 20

    def __init__(self, *, cache_dir: str = "") -> None:
        check()
        self.cuda = cuda = import_module("cupy.cuda")
        errors = cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError
        self.translating = Translating(cuda.runtime, errors)
        self._cache = cubins(cache_dir)
        self.functions = dict[str, Any]()
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

    def load(self) -> None:
        """Compile all kernels, or find them in the cache, and load them."""
        with self.translating:
            self.functions = functions(every_kernel(), self._architecture, self._cache)

    def limit_memory(self, nbytes: int) -> None:
        """Set the limit of CuPy's pool."""
        with self.translating:
            self._pool.set_limit(size=nbytes)

    def allocate(self, nbytes: int) -> DeviceBlock:
        """Return a block of CuPy's pool, whose limit counts free blocks too."""
        found: DeviceBlock
        with self.translating:
            try:
                found = self._pool.malloc(nbytes)
            except MemoryError:
                self._pool.free_all_blocks()
                found = self._pool.malloc(nbytes)
        return found

    def pinned(self, nbytes: int) -> Bytes:
        """Return page-locked host memory, which no pool holds."""
        memory = self.cuda.pinned_memory
        with self.translating:
            pointer = memory.PinnedMemoryPointer(memory.PinnedMemory(nbytes), 0)
        return np.frombuffer(pointer, np.uint8, nbytes)

    def stream(self) -> CupyStream:
        """Return a stream that does not wait for the default stream."""
        with self.translating:
            return CupyStream(self)


class CupyStream:
    """A stream of the current device."""

    def __init__(self, device: CupyDevice) -> None:
        self._device, self._translating = device, device.translating
        self._runtime = device.cuda.runtime
        self._stream = device.cuda.Stream(non_blocking=True)

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device."""
        self._copy(address, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice)

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        self._copy(target.ctypes.data, address, target.nbytes, self._runtime.memcpyDeviceToHost)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Launch a loaded kernel."""
        function, arguments = self._device.functions[launch.kernel], launch.resolved(addresses)
        with self._translating:
            function(launch.grid, launch.block, arguments, 0, self._stream)

    def mark(self, *, blocking: bool) -> Callable[[], None]:
        """Record an event; return a function that waits for it."""
        with self._translating:
            event = self._device.cuda.Event(block=blocking, disable_timing=True)
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
