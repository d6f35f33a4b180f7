"""A backend's apply() as a function that returns its result."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import Plan


class Applies(Protocol):
    """What of a backend is called here."""

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None: ...


def applied(
    backend: Applies, plan: Plan, x: npt.NDArray[Any], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Let a backend write a plan's result to an array that held other numbers before.

    The array lies between others; that these are left alone is asserted.
    """
    size, guard = int(np.prod(plan.output_shape)), 8
    memory = np.full(size + 2 * guard, 77.25, dtype)
    y = memory[guard : guard + size].reshape(plan.output_shape)
    backend.apply(plan, x, y)
    assert (memory[:guard] == memory.dtype.type(77.25)).all()
    assert (memory[guard + size :] == memory.dtype.type(77.25)).all()
    return y
