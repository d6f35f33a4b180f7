"""Backends."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from gradwire_server.backends.numpy_cpu import NumpyCpu, compute_dtype
from gradwire_server.plans import BandedMap, Plan


class Backend(Protocol):
    name: str

    def apply(self, plan: Plan, x: NDArray[Any], result_dtype: DTypeLike) -> NDArray[Any]: ...
    def accumulate(
        self, bands: BandedMap, x: NDArray[Any], y: NDArray[Any], *, axis: int, carried: int
    ) -> None: ...


def choose(name: str) -> tuple[Backend, str]:
    return NumpyCpu(), "the only one"


__all__ = ["Backend", "NumpyCpu", "choose", "compute_dtype"]
