"""Backends: what applies a plan to numbers, with the bits of `numpy_cpu` whichever it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan

_COMPILED = "numba_cpu"


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
class Binds(Protocol):
    """A backend that gets ready for arrays that stay where they are."""

    def bind(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Callable[[], None]:
        """Return what does apply(plan, x, y), without looking at them again."""
        ...


def bound(
    backend: Backend, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> Callable[[], None]:
    """Return what applies a plan to what is in x whenever it is called."""
    if isinstance(backend, Binds):
        return backend.bind(plan, x, y)
    return lambda: backend.apply(plan, x, y)


def choose(name: str, *, threads: int = 1, cache_dir: str = "") -> tuple[Backend, str]:
    """Return the backend of this name, or with "auto" the best there is, and why it was chosen.

    threads    most threads that one call of apply() computes with
    cache_dir  folder in which compiled code is kept; empty for the default one

    Raises ValueError where there is no such backend, or not here.
    """
    if name not in {"auto", _COMPILED, NumpyCpu.name}:
        raise ValueError(
            f'backend: "{name}" came; "auto", "{_COMPILED}" or "{NumpyCpu.name}" would do'
        )
    if name == NumpyCpu.name:
        return NumpyCpu(), f"{name} was asked for"
    try:
        compiled = _compiled(threads=threads, cache_dir=cache_dir)
    except ImportError as error:
        if name == _COMPILED:
            raise ValueError(
                f'backend: "{name}" came, which cannot run here: {error}; install it with '
                'pip install "gradwire[cpu]", or choose "auto"'
            ) from error
        return NumpyCpu(), f"{NumpyCpu.name}, since {_COMPILED} cannot run here: {error}"
    if name == _COMPILED:
        return compiled, f"{name} was asked for"
    return compiled, f"{_COMPILED} is the fastest backend for this machine"


def preload(name: str) -> None:
    """Import what choose() is going to, where that can be; it says what is wrong otherwise."""
    if name != NumpyCpu.name:
        with contextlib.suppress(ImportError, OSError):
            import_module("gradwire_server.backends.numba_cpu")


def _compiled(*, threads: int, cache_dir: str) -> Backend:
    """Import the compiled backend; ImportError where numba is missing or unfit for the machine."""
    try:
        from gradwire_server.backends.numba_cpu import NumbaCpu  # noqa: PLC0415 - optional, slow
    except OSError as error:  # the compiler's shared library
        raise ImportError(str(error)) from error
    return NumbaCpu(threads=threads, cache_dir=cache_dir)


__all__ = ["Backend", "NumpyCpu", "bound", "choose", "compute_dtype", "preload"]
