"""Banded linear maps: a resampling operator along one axis.

Output o reads the inputs start[o] .. stop[o] - 1, its band, each with its own weight:

    y[o] = sum over t of weight[offset[o] + t] * x[start[o] + t],   0 <= t < stop[o] - start[o]

Starts and stops of the bands both ascend or both descend, equal neighbors allowed: explicit zero
weights, and the positions of empty bands, ensure this. So the outputs that read one input are
contiguous too, and the adjoint is a banded map with as many weights. Its bands are found by
counting, without inverting a coordinate formula: where bands ascend, input j is read by the outputs
from #{o: stop[o] <= j} up to, not including, #{o: start[o] <= j}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans.cancellation import ask

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Taps = npt.NDArray[np.floating[Any]]

# Taps of a block of outputs: inputs and weights.
Block = tuple[Indices, Taps]


class Spans(NamedTuple):
    """Half-open ranges of inputs, one per output: int64[outputs] each."""

    start: Indices
    stop: Indices

    @property
    def counts(self) -> Indices:
        """Length of each."""
        counts: Indices = np.maximum(self.stop - self.start, 0)
        return counts


def merged_taps(index: Indices, weight: Taps) -> tuple[Indices, Taps]:
    """Sort each output's taps, and add up those on one input.

    They are added in their order, in weight's type. The first of them gets the sum, the others 0.
    """
    if not (index[:, 1:] >= index[:, :-1]).all():
        order = np.argsort(index, axis=1, kind="stable")
        index = np.take_along_axis(index, order, axis=1)
        weight = np.take_along_axis(weight, order, axis=1)
    repeats = index[:, 1:] == index[:, :-1]
    if not np.count_nonzero(repeats):  # faster than any() on short arrays
        return index, weight
    row, tap = repeats.nonzero()
    continues = (np.diff(row) == 0) & (np.diff(tap) == 1)
    place = np.arange(len(row))
    place[1:][continues] = 0
    first = tap[np.maximum.accumulate(place)]
    sums = weight.copy()
    sums[row, tap + 1] = 0
    # Adds sequentially; sum() adds pairwise.
    np.add.at(sums, (row, first), weight[row, tap + 1])
    return index, sums


def non_zero_spans(index: Indices, weight: Taps, *, inputs: int) -> Spans:
    """Return the spans from first to last non-zero tap.

    (inputs, 0) if there is none.
    """
    some = weight != 0
    rows = np.arange(len(index))
    first, from_last = some.argmax(axis=1), some[:, ::-1].argmax(axis=1)
    found = some[rows, first]
    stop = index[rows, some.shape[1] - 1 - from_last] + 1
    return Spans(np.where(found, index[rows, first], inputs), np.where(found, stop, 0))


def monotone_spans(spans: Spans) -> Spans:
    """Widen spans as little as possible to monotone ones.

    Both sides ascend, or both descend. Ascending is chosen unless descending takes fewer inputs in
    all. Empty spans, given as (inputs, 0), stay empty where no two spans before and after them
    overlap.
    """
    up = _ascending(spans)
    down = _ascending(Spans(spans.start[::-1], spans.stop[::-1]))
    if down.counts.sum() < up.counts.sum():
        return Spans(down.start[::-1], down.stop[::-1])
    return up


def _ascending(spans: Spans) -> Spans:
    start: Indices = np.minimum.accumulate(spans.start[::-1])[::-1]
    stop: Indices = np.maximum.accumulate(spans.stop)
    # An empty span between spans that do not overlap has stop <= start: any position from stop to
    # start keeps the order.
    return Spans(np.minimum(start, stop), stop)


def ascends(values: Indices) -> bool:
    """Whether no value is less than the one before."""
    return bool((values[1:] >= values[:-1]).all())


def packed_weights(index: Indices, weight: Taps, span: Spans) -> Weights:
    """Return the merged taps within their spans, output by output.

    Zeros fill gaps.
    """
    counts, some = span.counts, weight != 0
    if np.count_nonzero(some) == counts.sum():
        packed: Weights = weight[some].astype(np.float64)
        return packed  # no zero is inside a span
    inside = (index >= span.start[:, np.newaxis]) & (index < span.stop[:, np.newaxis])
    inside[:, 1:] &= index[:, 1:] != index[:, :-1]
    place = index + (np.cumsum(counts) - counts - span.start)[:, np.newaxis]
    result = np.zeros(counts.sum())
    result[place[inside]] = weight[inside]
    return result


# Weights transposed at once: their indices fit a core's cache.
_BLOCK_WEIGHTS = 1 << 15


# Not slotted, because of cached properties. Compared by identity: maps can be large.
@dataclass(frozen=True, eq=False)
class BandedMap:
    """Map along one axis, by bands of weights.

    Its arrays are shared and must not be written to.

    outputs  length of the result along the axis
    inputs   length of the input along the axis
    start    int64[outputs], first input of each band
    offset   int64[outputs + 1], from 0: the weights of output o are weight[offset[o]:offset[o + 1]]
    weight   float64[nnz], exact values of the dialect's own arithmetic, explicit zeros included

    Raises ValueError if a band is out of range.
    """

    outputs: int
    inputs: int
    start: Indices
    offset: Indices
    weight: Weights

    def __post_init__(self) -> None:
        if not self.outputs:
            return
        low = min(self.start.item(0), self.start.item(-1))
        high = max(self.stop.item(0), self.stop.item(-1))
        if low < 0 or high > self.inputs:
            raise ValueError(
                f"bands cover the inputs {low} .. {high - 1}; there are 0 .. {self.inputs - 1}"
            )

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], *, inputs: int) -> BandedMap:
        """Collect the taps of every output into bands.

        Taps come in any order, and may repeat inputs. A block has those of some outputs:

        index   int64[outputs, taps], inputs read, in the dialect's order of taps
        weight  floating[outputs, taps], their weights in the dialect's arithmetic type

        Taps on one input are added in that type, in the order given, then widened to float64. A
        band runs from the first to the last non-zero weight and holds the zeros between; an output
        without non-zero weights gets an empty band. Bands are then widened with zeros until they
        ascend, or descend if that takes fewer. Each block is freed once read; memory is
        O(outputs + weights) besides.
        """
        spans: list[Spans] = []
        pieces: list[Weights] = []
        for block in blocks:
            index, weight = merged_taps(*block)
            spans.append(non_zero_spans(index, weight, inputs=inputs))
            pieces.append(packed_weights(index, weight, spans[-1]))
        starts, stops = zip(*spans, strict=True)
        band = monotone_spans(Spans(np.concatenate(starts), np.concatenate(stops)))
        offset = _offsets(band.counts)
        if sum(map(len, pieces)) == offset[-1]:
            return cls(len(band.start), inputs, band.start, offset, np.concatenate(pieces))
        # Zeros fill wider bands.
        placed, row = np.zeros(offset[-1]), 0
        for span, piece in zip(spans, pieces, strict=True):
            rows = slice(row, row + len(span.start))
            shift = offset[rows] + span.start - band.start[rows] - _offsets(span.counts)[:-1]
            placed[np.arange(len(piece)) + shift.repeat(span.counts)] = piece
            row = rows.stop
        return cls(len(band.start), inputs, band.start, offset, placed)

    @cached_property
    def counts(self) -> Indices:
        """Weights of each output: int64[outputs]."""
        return np.diff(self.offset)

    @cached_property
    def stop(self) -> Indices:
        """One past the last input of each band: int64[outputs]."""
        return self.start + self.counts

    @property
    def nnz(self) -> int:
        """Number of weights, explicit zeros included."""
        return len(self.weight)

    @cached_property
    def is_increasing(self) -> bool:
        """Whether starts and stops ascend, equal neighbors allowed."""
        return ascends(self.start) and ascends(self.stop)

    @property
    def is_identity(self) -> bool:
        """Whether the map is exactly the identity."""
        return (
            self.outputs == self.inputs == self.nnz
            and bool((self.start == np.arange(self.outputs)).all())
            and bool((self.counts == 1).all())
            and bool((self.weight == 1).all())
        )

    def adjoint(self) -> BandedMap:
        """Return the transpose: the same weights, ordered by input.

        The adjoint of the adjoint has the bits of the original: counting twice restores starts and
        stops. (A map that descends only by its empty bands, which `from_blocks` never makes, gets
        ascending ones instead.)
        """
        ended = _counts_up_to(self.stop, self.inputs)
        begun = _counts_up_to(self.start, self.inputs)
        if self.is_increasing:
            first, last = ended, begun
        else:
            first, last = self.outputs - begun, self.outputs - ended
        offset = _offsets(last - first)
        shift = offset[:-1] - first
        weight = np.empty_like(self.weight)
        for part, output, column in self._weights_in_blocks():
            place = shift[column]
            place += output
            weight[place] = self.weight[part]
        return BandedMap(self.inputs, self.outputs, first, offset, weight)

    def window(self, first: int, stop: int, low: int, high: int) -> BandedMap:
        """Return a window of outputs and inputs.

        The outputs are first .. stop - 1, their taps those on inputs low .. high - 1. Both are
        renumbered from 0. Weights are shared with this map unless taps are left out. Time and
        memory are proportional to the window.
        """
        begin, end = self.offset[first:stop], self.offset[first + 1 : stop + 1]
        full = self.start[first:stop]
        start = np.clip(full, low, high)
        past = np.clip(full + (end - begin), low, high)
        offset = _offsets(counts := past - start)
        here = int(self.offset[first])
        if offset[-1] == self.offset[stop] - here:
            weight = self.weight[here : here + int(offset[-1])]
        else:
            moved = begin + (start - full) - offset[:-1]
            weight = self.weight[np.repeat(moved, counts) + np.arange(offset[-1])]
        return BandedMap(stop - first, high - low, start - low, offset, weight)

    def dense(self) -> Weights:
        """Return the matrix, float64[outputs, inputs], for tests and debugging."""
        matrix = np.zeros((self.outputs, self.inputs))
        for part, output, column in self._weights_in_blocks():
            matrix[output, column] = self.weight[part]
        return matrix

    def _weights_in_blocks(self) -> Iterator[tuple[slice, Indices, Indices]]:
        """Yield slices of weights, with each weight's output and input."""
        shift = self.start - self.offset[:-1]
        cuts = np.searchsorted(self.offset, range(0, self.nnz, _BLOCK_WEIGHTS))
        for first, stop in pairwise([*cuts, self.outputs]):
            ask()
            part = slice(self.offset[first], self.offset[stop])
            output: Indices = np.arange(first, stop).repeat(self.counts[first:stop])
            column: Indices = np.arange(int(self.offset[first]), int(self.offset[stop]))
            column += shift[output]
            yield part, output, column


def _offsets(counts: Indices) -> Indices:
    offset = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=offset[1:])
    return offset


def _counts_up_to(positions: Indices, length: int) -> Indices:
    """Return the number of positions up to each j below length."""
    return np.bincount(positions, minlength=length + 1)[:length].cumsum(dtype=np.int64)
