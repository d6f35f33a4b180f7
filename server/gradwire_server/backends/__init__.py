"""Backends, which apply plans with the bits of `numpy_cpu`."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan

_log = logging.getLogger(__name__)

_COMPILED = "numba_cpu"
_CUDA = "cuda"

# Names that choose() accepts.
NAMES = ("auto", _CUDA, _COMPILED, NumpyCpu.name)

# The module with check(), which counts devices, and open_device(cache_dir=FOLDER), which opens the
# first; both raise ImportError naming what is missing. Tests have a module of simulated devices.
DEVICES = "gradwire_server.backends.cuda.cupy_device"

# At most half the memory of the smallest supported devices.
CUDA_MEMORY_BYTES = 4 << 30


class Backend(Protocol):
    """Protocol of backends; implementations are thread-safe.

    name         by which settings choose it
    splits_work  whether one call of apply() spreads its work over several threads
    may_wait     whether a call above most_inline_work() may wait for a device
    """

    name: str
    splits_work: bool
    may_wait: bool

    def warm_up(self) -> None:
        """Prepare the backend, so that no later call waits for a compiler.

        Gives a device no work.
        """
        ...

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Write the plan's result for x to all of y.

        x and y share no memory.

        x  plan.input_shape in the storage or the compute type, any strides
        y  plan.output_shape in the storage type, rounded once, or in the compute type, not rounded;
           contiguous, row-major
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
        """Add every output's taps on x to y along one axis.

        x        bands.inputs long on the axis, compute type, any strides
        y        bands.outputs long on the axis, otherwise as x; written in place
        carried  number of outputs, from the first, that hold a partial sum; for the others the
                 first tap assigns, and they are +0 without taps
        """
        ...


@runtime_checkable
class BindsArrays(Protocol):
    """A backend that prepares repeated calls of apply() on the same arrays."""

    def bound(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Callable[[], None]:
        """Return a function that does apply(plan, x, y), keeping the arrays."""
        ...


@runtime_checkable
class TellsHeldBytes(Protocol):
    """A backend that reads broadcast axes (stride 0) without expanding them."""

    def held_bytes(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> int:
        """Return the temporary bytes of apply(plan, x, y).

        x may be any array of its layout.
        """
        ...


@runtime_checkable
class TakesDeviceMemory(Protocol):
    """A backend that computes in device memory."""

    @property
    def memory_taken(self) -> int:
        """Bytes of device memory in use or cached."""
        ...


@runtime_checkable
class StoresKernels(Protocol):
    """A backend whose kernels other processes can compile into a cache."""

    def load_stored(self, folder: str) -> bool:
        """Load the kernels from a cache; return False if code is missing.

        folder  the cache; empty for the user's
        """
        ...


@runtime_checkable
class LeavesToCpu(Protocol):
    """A backend that computes small calls on the CPU.

    cpu_work  multiplications below which the CPU computes a call in any case
    """

    cpu_work: int

    def on_device(self) -> Backend:
        """Return the same backend without the CPU for small calls."""
        ...

    @property
    def computed_by(self) -> Mapping[str, int]:
        """Number of computations so far, by backend name."""
        ...


def most_inline_s(backend: Backend) -> float:
    """Return the most seconds of a call on the event loop.

    Longer calls are better computed in a thread. Measured: with 0.1 ms a caller beside a saturating
    load of such calls waits three times as long. NumPy keeps the interpreter while it computes
    small arrays, 0.2 ms for the smallest: a thread would delay the other calls as much.
    """
    return 500e-6 if backend.name == NumpyCpu.name else 50e-6


# Computing threads that a worker's event loop keeps busy with receiving and sending.
_FEW_THREADS = 2


def most_inline_step_s(backend: Backend, threads: int) -> float:
    """Return the most seconds of a stream's step on the event loop.

    0 for none. In a thread the step takes more processor time: its chunk is in another core's
    caches, and the interpreter changes hands twice; docs/benchmarks/peers.md has the ratios for two
    cores. With more threads than the event loop can feed, steps would wait for it. A device may
    hang.
    """
    return 1e-3 if threads <= _FEW_THREADS and not backend.may_wait else 0.0


def most_inline_work(backend: Backend) -> float:
    """Return the most multiplications of a call that waits for processors only.

    Larger calls may wait for a device too.
    """
    if not backend.may_wait:
        return math.inf
    return backend.cpu_work - 1 if isinstance(backend, LeavesToCpu) else -1


def choose(
    name: str, *, threads: int = 1, cache_dir: str = "", cuda_memory_bytes: int = CUDA_MEMORY_BYTES
) -> tuple[Backend, str]:
    """Return a backend by name, and the reason for the choice.

    The name "auto" selects the best backend.

    threads            most threads that one call of apply() uses
    cache_dir          folder of the cache of compiled code; empty for the default
    cuda_memory_bytes  most device memory in use at once

    Raises ValueError if the backend does not exist or cannot run here.
    """
    if name not in NAMES:
        *others, last = (f'"{one}"' for one in NAMES)
        raise ValueError(f'backend is "{name}"; give {", ".join(others)} or {last}')
    if name == NumpyCpu.name:
        return NumpyCpu(), f"{name} was asked for"
    if name == _CUDA:
        return _cuda(threads=threads, cache_dir=cache_dir, memory_bytes=cuda_memory_bytes)
    try:
        from gradwire_server.backends.numba_cpu import NumbaCpu  # noqa: PLC0415 - optional, slow

        compiled = NumbaCpu(threads=threads, cache_dir=cache_dir)
    except Exception as error:  # noqa: BLE001 - another version of numba may raise anything
        return instead_of_compiled(name, error)
    if name == _COMPILED:
        return compiled, f"{name} was asked for"
    return compiled, f"{_COMPILED} is the fastest backend for the CPU; {_why_not_cuda()}"


def meanwhile(name: str) -> tuple[Backend, str, str] | None:
    """Return NumPy, the reason, and the backend that replaces it.

    It does so once its kernels are there.

    name  as in choose()

    None if the backend of that name is to compute from the first call on.
    """
    if name != "auto" or sys.platform != "linux" or find_spec("numba") is None:
        return None
    return NumpyCpu(), f"{NumpyCpu.name} computes until kernels are there", _COMPILED


def instead_of_compiled(name: str, error: Exception) -> tuple[Backend, str]:
    """Return the fallback of the compiled backend and the reason.

    Logs a warning.

    name   as in choose()

    Raises ValueError if the compiled backend was requested by name.
    """
    why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    why = " ".join(why.split())  # compilers' messages may have many lines
    if name == _COMPILED:
        raise ValueError(
            f'backend "{name}" cannot run here: {why}; install it with '
            'pip install "gradwire[cpu]", or ".[cpu]" in a checkout, or choose "auto"'
        ) from error
    if getattr(error, "name", "") not in {"numba", "llvmlite"}:
        # They are installed, so the user expects them to work.
        _log.warning("slower backend", extra={"facts": {"backend": NumpyCpu.name, "why": why}})
    return NumpyCpu(), f"{NumpyCpu.name}, since {_COMPILED} cannot run here: {why}"


def device_numbers(text: str) -> tuple[int, ...]:
    """Parse device numbers such as "0,2".

    The text of a ValueError is the end of a sentence.
    """
    words = text.split(",") if text else []
    numbers = [int(one) for one in words if one.isascii() and one.isdecimal()]
    if len(numbers) < len(words):
        raise ValueError("; numbers such as 0,2 are needed, or nothing")
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise ValueError(f", which names device {twice[0]} more than once; name each once")
    return tuple(numbers)


def preload(name: str) -> None:
    """Import the modules that choose() needs.

    Errors are ignored, since choose() reports them.
    """
    if name in {"auto", _COMPILED}:
        with contextlib.suppress(Exception):
            import_module("gradwire_server.backends.numba_cpu")


def _cuda(*, threads: int, cache_dir: str, memory_bytes: int) -> tuple[Backend, str]:
    """Open the device; a CPU backend computes the light calls."""
    from gradwire_server.backends.cuda.backend import Cuda  # noqa: PLC0415 - seldom wanted

    try:
        device = import_module(DEVICES).open_device(cache_dir=cache_dir)
        cpu, _ = choose("auto", threads=threads, cache_dir=cache_dir)
        backend = Cuda(device, memory_bytes=memory_bytes, cpu=cpu)
    except (ImportError, MemoryError, RuntimeError) as error:
        why = " ".join(str(error).split())  # CuPy's messages may have many lines
        raise ValueError(cannot_run_cuda(why)) from error
    return backend, (
        f"{_CUDA} was asked for; {device.name}; {cpu.name} computes calls of few multiplications "
        "for their bytes"
    )


def cannot_run_cuda(why: str) -> str:
    """Return the message that the CUDA backend cannot run here."""
    return f'backend "{_CUDA}" cannot run here: {why}; "auto" computes on the CPU'


def _why_not_cuda() -> str:
    """Return the reason for which "auto" does not choose CUDA.

    It opens no device, which would be slow.
    """
    if find_spec("cupy") is None:
        return f"not {_CUDA}: CuPy is not installed"
    return (
        f"{_CUDA} is chosen by its name only: it is faster only for calls of many multiplications"
    )


__all__ = [
    "CUDA_MEMORY_BYTES",
    "DEVICES",
    "NAMES",
    "Backend",
    "NumpyCpu",
    "StoresKernels",
    "TakesDeviceMemory",
    "cannot_run_cuda",
    "choose",
    "compute_dtype",
    "device_numbers",
    "instead_of_compiled",
    "meanwhile",
    "preload",
]
