"""Backends: what applies a plan to numbers, with the bits of `numpy_cpu` whichever it is."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan


class Backend(Protocol):
    """What the engine asks of a backend; `NumpyCpu` says what each method does."""

    @property
    def name(self) -> str:
        """Name by which settings choose it."""
        ...

    def apply(
        self, plan: Plan, x: npt.NDArray[Any], result_dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Return the plan's result for x."""
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
        """Add the taps of every output on x to y along one axis."""
        ...


def choose(name: str) -> tuple[Backend, str]:
    """Return the backend of this name, or with "auto" the best there is, and why it was chosen.

    Raises ValueError where there is no such backend.
    """
    if name == "auto":
        return NumpyCpu(), "numpy_cpu is the only backend of this release"
    if name == NumpyCpu.name:
        return NumpyCpu(), "numpy_cpu was asked for"
    raise ValueError(f'backend: "{name}" came; "auto" or "numpy_cpu" would do')


__all__ = ["Backend", "NumpyCpu", "choose", "compute_dtype"]
