"""Banded linear maps: what every resampling operator is along one axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BandedMap:
    """Output i is the sum of weight[offset[i] + t] * input[start[i] + t] over its taps t.

    outputs  length of the output side
    inputs   length of the input side
    start    int64[outputs]      first input read
    offset   int64[outputs + 1]  weights of output i are weight[offset[i]:offset[i + 1]]
    weight   float64[nnz]        exact values of the dialect's own arithmetic

    Starts and stops of the bands are both non-decreasing or both non-increasing, so that columns are
    contiguous bands too and the adjoint is a banded map with the same weights.
    """

    outputs: int
    inputs: int
    start: Indices
    offset: Indices
    weight: Weights

    def __post_init__(self) -> None:
        if self.start.shape != (self.outputs,) or self.offset.shape != (self.outputs + 1,):
            raise ValueError(
                f"start {self.start.shape} and offset {self.offset.shape} do not fit {self.outputs} outputs"
            )
        if self.offset[0] != 0 or self.offset[-1] != len(self.weight) or (self.counts < 0).any():
            raise ValueError("offset does not ascend from 0 to the number of weights")
        if (self.start < 0).any() or (self.stop > self.inputs).any():
            raise ValueError(f"bands leave the {self.inputs} inputs")
        if not (self.is_increasing or self._is_decreasing):
            raise ValueError("starts and stops of the bands are not monotone")

    @cached_property
    def counts(self) -> Indices:
        """Number of taps of each output."""
        return np.diff(self.offset)

    @cached_property
    def stop(self) -> Indices:
        """One past the last input read."""
        return self.start + self.counts

    @cached_property
    def is_increasing(self) -> bool:
        """Whether starts and stops are non-decreasing."""
        return bool((np.diff(self.start) >= 0).all() and (np.diff(self.stop) >= 0).all())

    @cached_property
    def _is_decreasing(self) -> bool:
        return bool((np.diff(self.start) <= 0).all() and (np.diff(self.stop) <= 0).all())

    @property
    def nnz(self) -> int:
        """Number of weights, explicit zeros included."""
        return len(self.weight)

    @cached_property
    def is_identity(self) -> bool:
        """Whether every output is the input of its own index."""
        return (
            self.outputs == self.inputs == self.nnz
            and bool((self.counts == 1).all())
            and bool((self.start == np.arange(self.outputs)).all())
            and bool((self.weight == 1).all())
        )

    @classmethod
    def from_taps(cls, index: Indices, weight: NDArray[np.floating[Any]], *, inputs: int) -> BandedMap:
        """Collect taps in the arithmetic type of weight, then widen to float64.

        index   int64[outputs, taps]     inputs read, in the dialect's tap order
        weight  floating[outputs, taps]  their weights; taps on one input are added in tap order
        """
        low = index.min(axis=1)
        width = int((index.max(axis=1) - low).max()) + 1
        merged = np.zeros((len(index), width), weight.dtype)
        rows = np.arange(len(index))
        for tap in range(index.shape[1]):
            merged[rows, index[:, tap] - low] += weight[:, tap]
        filled = merged != 0
        some = filled.any(axis=1)
        start = low + filled.argmax(axis=1)
        stop = low + width - filled[:, ::-1].argmax(axis=1)
        first, last = _monotone(start, stop, some, inputs)
        count = last - first
        offset = np.concatenate([[0], np.cumsum(count)])
        row = np.repeat(rows, count)
        column = np.arange(offset[-1]) - offset[row] + first[row] - low[row]
        inside = (column >= 0) & (column < width)
        weights = np.zeros(offset[-1])
        weights[inside] = merged[row[inside], column[inside]]
        return cls(len(index), inputs, first, offset, weights)

    def adjoint(self) -> BandedMap:
        """Transpose the table: the same weights, read by columns."""
        columns = np.arange(self.inputs)
        start, stop = self.start, self.stop
        if self.is_increasing:
            first = np.searchsorted(stop, columns, "right")
            last = np.searchsorted(start, columns, "right")
        else:
            first = self.outputs - np.searchsorted(start[::-1], columns, "right")
            last = self.outputs - np.searchsorted(stop[::-1], columns, "right")
        offset = np.concatenate([[0], np.cumsum(last - first)])
        row = np.repeat(np.arange(self.outputs), self.counts)
        column = np.arange(self.nnz) - self.offset[row] + start[row]
        weight = np.empty_like(self.weight)
        weight[offset[column] + row - first[column]] = self.weight
        return BandedMap(self.inputs, self.outputs, first, offset, weight)

    def window(self, first: int, stop: int, low: int, high: int) -> BandedMap:
        """Take outputs first..stop-1 and of them the taps on inputs low..high-1, renumbered from low."""
        begin = np.clip(self.start[first:stop], low, high)
        end = np.clip(self.stop[first:stop], low, high)
        skipped = begin - self.start[first:stop]
        count = end - begin
        offset = np.concatenate([[0], np.cumsum(count)])
        if offset[-1] == self.offset[stop] - self.offset[first]:
            weight = self.weight[self.offset[first] : self.offset[stop]]
        else:
            row = np.repeat(np.arange(stop - first), count)
            place = (self.offset[first:stop] + skipped)[row] + np.arange(offset[-1]) - offset[row]
            weight = self.weight[place]
        return BandedMap(stop - first, high - low, begin - low, offset, weight)

    def dense(self) -> Weights:
        """Return float64[outputs, inputs], for tests and for reading."""
        matrix = np.zeros((self.outputs, self.inputs))
        row = np.repeat(np.arange(self.outputs), self.counts)
        matrix[row, np.arange(self.nnz) - self.offset[row] + self.start[row]] = self.weight
        return matrix


def _monotone(start: Indices, stop: Indices, some: NDArray[np.bool_], inputs: int) -> tuple[Indices, Indices]:
    """Widen bands until starts and stops ascend together, or descend where that takes fewer weights."""
    up = _ascending(start, stop, some, inputs)
    if np.array_equal(up[0][some], start[some]) and np.array_equal(up[1][some], stop[some]):
        return up
    down = tuple(side[::-1] for side in _ascending(start[::-1], stop[::-1], some[::-1], inputs))
    if (down[1] - down[0]).sum() < (up[1] - up[0]).sum():
        return down[0], down[1]
    return up


def _ascending(start: Indices, stop: Indices, some: NDArray[np.bool_], inputs: int) -> tuple[Indices, Indices]:
    first = np.minimum.accumulate(np.where(some, start, inputs)[::-1])[::-1]
    last = np.maximum.accumulate(np.where(some, stop, 0))
    first = np.where(some, first, np.minimum(first, last))
    return first, last
