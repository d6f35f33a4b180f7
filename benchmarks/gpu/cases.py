"""Rows of the GPU benchmark: the compute cases, larger than the caches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.compute.cases import CASES, DTYPES, Array, Case, Layout, operator_of, stored
from gradwire_server import dialects
from gradwire_server.plans import Plan

# Rows for the simulated device, which computes some million numbers a second.
_TINY_SIDE = 24
_TINY_PLANES = 4

# A prime length keeps equal values far from each other.
_PATTERN = 1_000_003

# Cases with targets come first, in case the time does not suffice for all.
_FIRST = ("linear 2-D x2", "nearest 2-D x2", "cubic 2-D x2", "linear 3-D x2", "linear plane x2")
_TYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A case of some size in one layout and type."""

    case: Case
    layout: Layout
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of output gradient and input gradient together."""
        return self.case.elements() * DTYPES[self.dtype].itemsize

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of input and output, in the order of the layout."""
        return stored(self.case.dst, self.layout), stored(self.case.src, self.layout)

    @property
    def plan(self) -> Plan:
        """Plan of the gradient."""
        return gradient(self.case, self.layout)


def rows(*, nbytes: int, quick: bool = False) -> list[GpuRow]:
    """Return all rows, the most important first.

    Within each part, bfloat16 comes last.

    nbytes  that each one moves, at least
    quick   only the cases of the targets
    """
    some = [case for case in CASES if not quick or case.name in _FIRST]
    made = [
        GpuRow(grown(case, nbytes=nbytes, itemsize=DTYPES[dtype].itemsize), layout, dtype)
        for case in some
        for dtype in _TYPES
        for layout in case.layouts
    ]
    return sorted(made, key=lambda row: (row.case.name not in _FIRST, row.dtype == "bfloat16"))


def tiny_rows() -> list[GpuRow]:
    """Return all rows, small enough for a simulated device."""
    return [
        GpuRow(shrunk(case), layout, dtype)
        for case in CASES
        for dtype in _TYPES
        for layout in case.layouts
    ]


def grown(case: Case, *, nbytes: int, itemsize: int) -> Case:
    """Return a case that moves at least so many bytes.

    It has more images, or wider ones.
    """
    if case.kind == "dml":
        # All of the result is compared, and wider images move no more than their width does.
        axis, nbytes = -1, nbytes // 4
    else:
        axis = 0
    times = -(-nbytes // (case.elements() * itemsize))
    return replace(case, src=_times(case.src, axis, times), dst=_times(case.dst, axis, times))


def shrunk(case: Case) -> Case:
    """Return a smaller case of the same kind and similar scales."""
    spatial = [_shrunk(src, dst) for src, dst in zip(case.src[2:], case.dst[2:], strict=True)]
    planes = [min(size, _TINY_PLANES) for size in case.src[:2]]
    if case.kind == "dml":
        spatial = [_shrunk(src, dst) for src, dst in zip(case.src, case.dst, strict=True)]
        planes = []
    src = (*planes, *(low for low, _ in spatial))
    dst = (*planes, *(high for _, high in spatial))
    return replace(case, src=src, dst=dst)


def gradient(case: Case, layout: Layout) -> Plan:
    """Lower a case to the plan that a server would apply."""
    operator = operator_of(case, layout)
    if case.kind == "cubic":
        plan = dialects.forward(operator.name, operator, case.dst, case.src).plan()
        return plan if layout == "NCX" else plan.permuted((0, *range(2, len(case.src)), 1))
    dst, src = stored(case.dst, layout), stored(case.src, layout)
    return dialects.forward(operator.name, operator, dst, src).plan()


class Numbers:
    """Numbers of a repeated pattern of prime length.

    The longest array of each type is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def filled(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return read-only numbers."""
        size = math.prod(shape)
        if dtype not in self._kept or self._kept[dtype].size < size:
            pattern = np.random.default_rng(0).normal(size=_PATTERN).astype(DTYPES[dtype])
            self._kept[dtype] = np.resize(pattern, size)
        return self._kept[dtype][:size].reshape(shape)


def ends(row: GpuRow) -> Iterator[tuple[slice, Plan]]:
    """Yield the first image and the last, each with its plan.

    An image is a slice of the first axis. A single part is all of that axis if the operator moves
    it.
    """
    images = row.case.src[0]
    if row.case.kind == "dml":
        yield slice(0, images), row.plan
        return
    one = replace(row.case, src=(1, *row.case.src[1:]), dst=(1, *row.case.dst[1:]))
    plan = gradient(one, row.layout)
    for first in sorted({0, images - 1}):
        yield slice(first, first + 1), plan


def additions(plan: Plan) -> int:
    """Return the most terms summed for one number of the result."""
    return math.prod(int(one.map.counts.max()) for one in plan.passes)


def _times(sizes: tuple[int, ...], axis: int, times: int) -> tuple[int, ...]:
    more = list(sizes)
    more[axis] *= times
    return tuple(more)


def _shrunk(src: int, dst: int) -> tuple[int, int]:
    """Return two smaller lengths of the same scale.

    A scale that is an integer stays so.

    src, dst  the lengths as they were
    """
    long, short = max(src, dst), min(src, dst)
    if long % short == 0:
        low = max(2, min(short, _TINY_SIDE * short // long))
        pair = (low, low * (long // short))
    else:
        high = min(long, _TINY_SIDE)
        pair = (max(2, round(high * short / long)), high)
    return pair if src <= dst else (pair[1], pair[0])
