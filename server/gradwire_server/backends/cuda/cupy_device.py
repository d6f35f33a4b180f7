"""A real device, through CuPy.

Nothing of CuPy is imported before it is needed: that takes half a second, and it is optional.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.cuda_errors import NO_DEVICE, OUT_OF_MEMORY, is_lasting
from gradwire_server.backends.cuda.device import Bytes, DeviceError, DeviceLostError
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Launch
from gradwire_server.backends.kept_files import forget_others

_log = logging.getLogger(__name__)


def check() -> int:
    """Return how many devices there are.

    Raises ImportError that says what is missing: CuPy, the driver or a device.
    """
    if find_spec("cupy") is None:
        raise ImportError(
            'CuPy is not installed; install it with pip install "gradwire[cuda13]", or '
            "gradwire[cuda12] for a driver of CUDA 12"
        )
    build.check()
    runtime = import_module("cupy.cuda").runtime
    if not runtime.driverGetVersion():
        raise ImportError("there is no NVIDIA driver (libcuda.so.1)")
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status != NO_DEVICE:
            raise ImportError(str(error)) from error
        count = 0
    if not count:
        raise ImportError("the NVIDIA driver sees no device")
    return int(count)


def find(number: int, *, cache_dir: str) -> tuple[CupyDevice, int]:
    """Return a device, and how many there are; raises ImportError as check() does."""
    device = CupyDevice(number, cache_dir=cache_dir)
    return device, check()


class CupyMemory:
    """Memory of the device, given back when nothing refers to it."""

    def __init__(self, memory: Any, nbytes: int) -> None:
        self._memory, self.nbytes = memory, nbytes
        self.address = int(memory.ptr)


class CupyDevice:
    """One of the devices that CUDA_VISIBLE_DEVICES leaves.

    number     of the device among them
    cache_dir  folder in which compiled kernels are kept; empty for the user's cache folder

    Raises ImportError where it is not there, as check() does.
    """

    def __init__(self, number: int = 0, *, cache_dir: str = "") -> None:
        count = check()
        if number >= count:
            raise ImportError(f"there is no device {number}; the NVIDIA driver sees {count}")
        self._number = number
        self._cupy: Any = import_module("cupy")
        self._cache = cubins(cache_dir)
        self._functions = dict[Kernel, Any]()
        self._lock = Lock()
        with self.used():
            properties = self._cupy.cuda.runtime.getDeviceProperties(self._number)
        self.name: str = properties["name"].decode()
        self.architecture = 10 * int(properties["major"]) + int(properties["minor"])
        self.multiprocessors = int(properties["multiProcessorCount"])

    @contextmanager
    def used(self) -> Generator[None]:
        """Have this thread use the device, and errors of CUDA be errors of ours."""
        cuda = self._cupy.cuda
        errors = cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError
        try:
            with cuda.Device(self._number):
                yield
        except errors as error:
            lasts = is_lasting(error.status)
            if not lasts and error.status != OUT_OF_MEMORY:
                lasts = self._fails(errors)
            raise_as_ours(error, lasts=lasts)

    def _fails(self, errors: tuple[type[Exception], ...]) -> bool:
        """Whether the device does nothing any more, after an error that need not mean so."""
        try:
            with self._cupy.cuda.Device(self._number):
                self._cupy.cuda.runtime.deviceSynchronize()
        except errors:
            return True
        return False

    def load(self, kernels: Collection[Kernel]) -> None:
        """Compile kernels, or find what was compiled before, and make them ready."""
        with self._lock, self.used():
            for source, expressions in build.by_source(kernels).items():
                cubin = build.build(source, expressions, self.architecture, self._cache)
                for line in build.spills(cubin.log):
                    facts = {"source": source, "architecture": self.architecture, "ptxas": line}
                    _log.warning("spilled registers: it is slower", extra={"facts": facts})
                module = self._cupy.RawModule(path=str(cubin.path))
                for expression in expressions:
                    function = module.get_function(cubin.lowered[expression])
                    _ = function.kernel  # CuPy and CUDA would load it at the first launch
                    self._functions[Kernel(source, expression)] = function
        forget_others(self._cache / build.version())

    def allocate(self, nbytes: int) -> CupyMemory:
        """Return memory of the device, past CuPy's pool, which would keep what is given back."""
        with self.used():
            return CupyMemory(self._cupy.cuda.Memory(nbytes), nbytes)

    def pinned(self, nbytes: int) -> Bytes:
        """Return page-locked memory of the host."""
        with self.used():
            memory = self._cupy.cuda.pinned_memory
            pointer = memory.PinnedMemoryPointer(memory.PinnedMemory(nbytes), 0)
        return np.frombuffer(pointer, np.uint8, nbytes)

    def register(self, memory: Bytes) -> None:
        """Make memory of the host page-locked for as long as the array exists."""
        with self.used():
            self._cupy.cuda.runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        weakref.finalize(memory, self._unregister, memory.ctypes.data).atexit = False

    def _unregister(self, address: int) -> None:
        try:
            with self.used():
                self._cupy.cuda.runtime.hostUnregister(address)
        except (DeviceError, MemoryError) as error:  # raised here it would reach nobody
            _log.warning("memory stays pinned", extra={"facts": {"error": error}})

    def stream(self) -> CupyStream:
        """Return a stream that waits for no other."""
        with self.used():
            return CupyStream(self, self._cupy, self._functions)


class CupyStream:
    """A stream of the device."""

    def __init__(self, device: CupyDevice, cupy: Any, functions: Mapping[Kernel, Any]) -> None:
        self._device, self._functions = device, functions
        self._runtime, self._event = cupy.cuda.runtime, cupy.cuda.Event
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device."""
        self._copy(address, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice)

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        self._copy(target.ctypes.data, address, target.nbytes, self._runtime.memcpyDeviceToHost)

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel that was loaded."""
        function = self._functions[launch.kernel]
        with self._device.used(), self._stream:
            function(
                launch.grid,
                launch.block,
                launch.resolved(addresses),
                shared_mem=launch.shared_bytes,
            )

    def mark(self) -> CupyMark:
        """Return a mark behind all that was given so far."""
        with self._device.used():
            event = self._event(disable_timing=True)
            event.record(self._stream)
        return CupyMark(self._device, event)

    def synchronize(self) -> None:
        """Wait until all is done."""
        with self._device.used():
            self._stream.synchronize()

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        with self._device.used():
            self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)


class CupyMark:
    """An event in a stream."""

    def __init__(self, device: CupyDevice, event: Any) -> None:
        self._device, self._event = device, event

    def wait(self) -> None:
        """Wait until it has come."""
        with self._device.used():
            self._event.synchronize()


def raise_as_ours(error: Any, *, lasts: bool) -> NoReturn:
    """Raise an error of CUDA as what the backend knows.

    lasts  whether every later call will fail too
    """
    if error.status == OUT_OF_MEMORY:
        raise MemoryError(str(error)) from error
    if lasts:
        raise DeviceLostError(str(error)) from error
    raise DeviceError(str(error)) from error


def cubins(cache_dir: str) -> Path:
    """Return the folder of compiled kernels."""
    if cache_dir:
        return Path(cache_dir) / "cuda"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gradwire" / "cuda"
