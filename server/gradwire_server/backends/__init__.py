"""Backends: what applies a plan to numbers, with the bits of `numpy_cpu` whichever it is."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan

_log = logging.getLogger(__name__)

_COMPILED = "numba_cpu"
_CUDA = "cuda"

# What choose() takes.
NAMES = ("auto", _CUDA, _COMPILED, NumpyCpu.name)

# The module that counts devices, check(), and opens the first, open_device(cache_dir=FOLDER); both
# raise ImportError that says what is missing. Tests have a module of simulated devices.
DEVICES = "gradwire_server.backends.cuda.cupy_device"

# Of the smallest devices that serve, a half or less.
CUDA_MEMORY_BYTES = 4 << 30


class Backend(Protocol):
    """What the engine asks of a backend; threads may share it."""

    @property
    def name(self) -> str:
        """Name by which settings choose it."""
        ...

    @property
    def splits_work(self) -> bool:
        """Whether one call of apply() spreads its work over several threads."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether a call of more than inline_work_of() may wait for more than a processor."""
        ...

    def warm_up(self) -> None:
        """Make ready, so that no later call waits for a compiler."""
        ...

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Write the plan's result for x to all of y. They share no memory.

        x  plan.input_shape in the storage or the compute type, any strides
        y  plan.output_shape in the storage type, for the one rounding, or in the compute type, for
           none; contiguous, row-major
        """
        ...

    def accumulate(
        self,
        bands: BandedMap,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        axis: int,
        carried: int,
    ) -> None:
        """Add the taps of every output on x to y along one axis.

        x        bands.inputs long on the axis, compute type, any strides
        y        bands.outputs long on the axis, otherwise as x; written in place
        carried  how many outputs, from the first, hold a partial sum already; of the others the
                 first tap assigns, and they are +0 without taps
        """
        ...


@runtime_checkable
class TellsHeldBytes(Protocol):
    """A backend that reads what is repeated along an axis, with a stride of 0, where it is."""

    def held_bytes(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> int:
        """Return the bytes that apply(plan, x, y) takes meanwhile; x may be any array like it."""
        ...


@runtime_checkable
class TakesDeviceMemory(Protocol):
    """A backend that computes in memory of a device."""

    @property
    def memory_taken(self) -> int:
        """Bytes of the device's memory that are in use or kept for later."""
        ...


@runtime_checkable
class LoadsKernels(Protocol):
    """A backend whose kernels can be loaded before warm_up(), which gives the device work."""

    def load(self) -> None:
        """Load all kernels, compiling those that are not cached."""
        ...


@runtime_checkable
class LeavesToCpu(Protocol):
    """A backend that computes small calls on the CPU."""

    def on_device(self) -> Backend:
        """Return the same backend, which leaves nothing to the CPU."""
        ...

    @property
    def cpu_work(self) -> int:
        """Multiplications below which it does so."""
        ...

    @property
    def computed_by(self) -> Mapping[str, int]:
        """Number of computations so far, by name of the backend that did them."""
        ...


def most_inline_work(backend: Backend) -> float:
    """Return the multiplications beyond which a call may wait for more than a processor."""
    if not backend.may_wait:
        return math.inf
    return backend.cpu_work - 1 if isinstance(backend, LeavesToCpu) else -1


def choose(
    name: str, *, threads: int = 1, cache_dir: str = "", cuda_memory_bytes: int = CUDA_MEMORY_BYTES
) -> tuple[Backend, str]:
    """Return the backend of this name, or with "auto" the best there is, and why it was chosen.

    threads            most threads that one call of apply() computes with
    cache_dir          folder in which compiled code is kept; empty for the default one
    cuda_memory_bytes  most memory of a device that is taken at once

    Raises ValueError where there is no such backend, or not here.
    """
    if name not in NAMES:
        *others, last = (f'"{one}"' for one in NAMES)
        raise ValueError(f'backend: "{name}" came; {", ".join(others)} or {last} would do')
    if name == NumpyCpu.name:
        return NumpyCpu(), f"{name} was asked for"
    if name == _CUDA:
        return _cuda(cache_dir=cache_dir, memory_bytes=cuda_memory_bytes)
    try:
        compiled = _compiled(threads=threads, cache_dir=cache_dir)
    except Exception as error:  # noqa: BLE001 - whatever another version of numba raises
        return instead_of_compiled(name, error)
    if name == _COMPILED:
        return compiled, f"{name} was asked for"
    return compiled, f"{_COMPILED} is the fastest backend for the CPU; {_why_not_cuda()}"


def may_fall_back(backend: Backend) -> bool:
    """Whether instead_of_compiled() is for this backend where it does not come to compute."""
    return backend.name == _COMPILED


def instead_of_compiled(name: str, error: Exception) -> tuple[Backend, str]:
    """Return what computes where the compiled backend does not, and why; warn of it.

    name   as choose() takes it

    Raises ValueError where the compiled backend was asked for by its name.
    """
    why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    why = " ".join(why.split())  # compilers may say it in many lines
    if name == _COMPILED:
        raise ValueError(
            f'backend: "{name}" came, which cannot run here: {why}; install it with '
            'pip install "gradwire[cpu]", or choose "auto"'
        ) from error
    if getattr(error, "name", "") not in {"numba", "llvmlite"}:
        # They are installed, and were to be used.
        _log.warning("slower backend", extra={"facts": {"backend": NumpyCpu.name, "why": why}})
    return NumpyCpu(), f"{NumpyCpu.name}, since {_COMPILED} cannot run here: {why}"


def device_numbers(text: str) -> tuple[int, ...]:
    """Read numbers of devices such as "0,2"; ValueError, as the end of a sentence, where wrong."""
    words = text.split(",") if text else []
    numbers = [int(one) for one in words if one.isascii() and one.isdecimal()]
    if len(numbers) < len(words):
        raise ValueError("; numbers such as 0,2 are needed, or nothing")
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise ValueError(f", which names device {twice[0]} more than once; name each once")
    return tuple(numbers)


def preload(name: str) -> None:
    """Import what choose() is going to, where that can be; it says what is wrong otherwise."""
    if name in {"auto", _COMPILED}:
        with contextlib.suppress(Exception):
            import_module("gradwire_server.backends.numba_cpu")


def _compiled(*, threads: int, cache_dir: str) -> Backend:
    """Import the compiled backend."""
    from gradwire_server.backends.numba_cpu import NumbaCpu  # noqa: PLC0415 - optional, slow

    return NumbaCpu(threads=threads, cache_dir=cache_dir)


def _cuda(*, cache_dir: str, memory_bytes: int) -> tuple[Backend, str]:
    """Open the device; small calls get a CPU backend of one thread."""
    from gradwire_server.backends.cuda.backend import Cuda  # noqa: PLC0415 - seldom wanted

    try:
        device = import_module(DEVICES).open_device(cache_dir=cache_dir)
        cpu = _cpu(cache_dir=cache_dir)
        backend = Cuda(device, memory_bytes=memory_bytes, cpu=cpu)
    except (ImportError, MemoryError, RuntimeError) as error:
        why = " ".join(str(error).split())  # CuPy may say it in many lines
        raise ValueError(cannot_run_cuda(why)) from error
    return backend, (
        f"{_CUDA} was asked for; {device.name}; calls below {backend.cpu_work} multiplications "
        f"are computed on the CPU, by {cpu.name}"
    )


def _cpu(*, cache_dir: str) -> Backend:
    try:
        return _compiled(threads=1, cache_dir=cache_dir)
    except Exception as error:  # noqa: BLE001 - whatever another version of numba raises
        return instead_of_compiled("auto", error)[0]


def cannot_run_cuda(why: str) -> str:
    """Return the message that the CUDA backend cannot run here."""
    return f'backend: "{_CUDA}" came, which cannot run here: {why}; "auto" computes on the CPU'


def _why_not_cuda() -> str:
    """Say why "auto" leaves a device alone, without a look at it, which would take long."""
    if find_spec("cupy") is None:
        return f"not {_CUDA}: CuPy is not installed"
    return f"{_CUDA} is chosen by its name only, for no device has been measured"


__all__ = [
    "CUDA_MEMORY_BYTES",
    "DEVICES",
    "NAMES",
    "Backend",
    "NumpyCpu",
    "TakesDeviceMemory",
    "cannot_run_cuda",
    "choose",
    "compute_dtype",
    "device_numbers",
    "instead_of_compiled",
    "may_fall_back",
    "preload",
]
