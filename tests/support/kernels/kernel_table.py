"""A list of plans that takes compiled kernels through every method."""

from __future__ import annotations

from functools import cache

from support.kernels import kernel_one_axis, kernel_several_axes
from support.kernels.kernel_cases import Case


@cache
def cases() -> list[Case]:
    """Return all of them; no tensor has more than 250 000 numbers."""
    return [*kernel_one_axis.cases(), *kernel_several_axes.cases()]
