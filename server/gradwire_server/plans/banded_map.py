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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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


def ascending_taps(index: Indices, weight: Taps) -> tuple[Indices, Taps]:
    """Sort each output's taps by input.

    Taps on one input keep their order.
    """
    if _all(index[:, 1:] >= index[:, :-1]):
        return index, weight
    order = np.argsort(index, axis=1, kind="stable")
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(weight, order, axis=1)


# Columns of taps that take as long as one run of repeated taps.
_RUN_COLUMNS = 8


def merged_weights(index: Indices, weight: Taps) -> Taps:
    """Add up repeated taps on one input.

    They are added in order, in weight's type. The last of them gets the sum, the others get 0. Both
    arrays are [outputs, taps], sorted by `ascending_taps`.
    """
    repeats = index[:, 1:] == index[:, :-1]
    if not np.count_nonzero(repeats):
        return weight
    sums = weight.copy(order="K")
    inside = np.pad(repeats, ((0, 0), (1, 1)))
    first = (inside[:, 1:] & ~inside[:, :-1]).nonzero()
    last = (inside[:, :-1] & ~inside[:, 1:]).nonzero()
    if _RUN_COLUMNS * len(first[0]) < repeats.shape[1]:
        # Few inputs, such as the ends of the axis, each read by many taps.
        for row, low, high in zip(*first, last[1], strict=True):
            # cumsum adds sequentially.
            total = np.cumsum(weight[row, low : high + 1], dtype=weight.dtype)[-1]
            sums[row, low:high] = 0
            sums[row, high] = total
        return sums
    for tap in range(repeats.shape[1]):
        (again,) = repeats[:, tap].nonzero()
        if len(again):
            sums[again, tap + 1] += sums[again, tap]
            sums[again, tap] = 0
    return sums


def non_zero_spans(index: Indices, weight: Taps, *, inputs: int) -> Spans:
    """Return the spans from first to last non-zero tap.

    (inputs, 0) if there is none.
    """
    some = weight != 0
    if not some.size:
        return Spans(np.full(len(index), inputs), np.zeros(len(index), np.int64))
    if _all(some):
        return Spans(index[:, 0].copy(), index[:, -1] + 1)
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
    if ascends(spans.start) and ascends(spans.stop) and _all(spans.start < spans.stop):
        return spans
    up = _ascending(spans)
    empty = spans.start >= spans.stop
    if _total(up) == _total(Spans(spans.start[~empty], spans.stop[~empty])):
        return up
    down = _ascending(Spans(spans.start[::-1], spans.stop[::-1]))
    return Spans(down.start[::-1], down.stop[::-1]) if _total(down) < _total(up) else up


def ascends(values: Indices) -> bool:
    """Whether no value is less than the one before."""
    return _all(values[1:] >= values[:-1])


def _all(flags: npt.NDArray[np.bool_]) -> bool:
    # Much faster than flags.all() on short arrays.
    return int(np.count_nonzero(flags)) == flags.size


def _ascending(spans: Spans) -> Spans:
    start: Indices = np.minimum.accumulate(spans.start[::-1])[::-1]
    stop: Indices = np.maximum.accumulate(spans.stop)
    # An empty span between spans that do not overlap has stop <= start: any position from stop to
    # start keeps the order.
    return Spans(np.minimum(start, stop), stop)


def _total(spans: Spans) -> int:
    return int(np.sum(spans.stop - spans.start))


def joined(spans: Sequence[Spans]) -> Spans:
    """Return the concatenated spans of all blocks."""
    if len(spans) == 1:
        return spans[0]
    return Spans(*(np.concatenate(sides) for sides in zip(*spans, strict=True)))


def packed_weights(index: Indices, weight: Taps, span: Spans) -> Weights:
    """Return the merged taps within their spans, output by output.

    Zeros fill gaps.
    """
    counts = np.maximum(span.stop - span.start, 0)
    some = weight != 0
    total = int(counts.sum())
    if np.count_nonzero(some) == total:
        packed: Weights = weight[some].astype(np.float64)
        return packed  # no zero is inside a span
    inside = (index >= span.start[:, np.newaxis]) & (index < span.stop[:, np.newaxis])
    inside[:, :-1] &= index[:, :-1] != index[:, 1:]
    place = index + (np.cumsum(counts) - counts - span.start)[:, np.newaxis]
    result = np.zeros(total)
    result[place[inside]] = weight[inside]
    return result


def placed_weights(
    pieces: Sequence[Weights], *, span: Spans, band: Spans, offset: Indices
) -> Weights:
    """Lay weights out as float64[offset[-1]], output by output; zeros fill wider bands.

    pieces  the weights of all spans, in blocks of whole outputs; [] where there are no outputs
    band    the bands, each holding its span
    offset  int64[outputs + 1], where each band's weights begin
    """
    if sum(map(len, pieces)) == offset[-1]:
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    counts = np.maximum(span.stop - span.start, 0)
    ends = np.cumsum(counts)
    shift = offset[:-1] + span.start - band.start - (ends - counts)
    result = np.zeros(offset[-1])
    low = 0
    for piece in pieces:
        high = low + len(piece)
        first, last = np.searchsorted(ends, (low, high), "right")
        rows = slice(first, last + 1)
        within = np.diff(np.clip(ends[rows], low, high), prepend=low)
        result[np.arange(low, high) + shift[rows].repeat(within)] = piece
        low = high
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

    Raises ValueError if the arrays are inconsistent, a band is out of range, or the bands neither
    ascend nor descend.
    """

    outputs: int
    inputs: int
    start: Indices
    offset: Indices
    weight: Weights

    def __post_init__(self) -> None:
        self._check_arrays()
        self._check_bands()

    @classmethod
    def from_taps(
        cls, index: Indices, weight: npt.NDArray[np.floating[Any]], *, inputs: int
    ) -> BandedMap:
        """Collect the taps of every output into bands.

        Taps come in any order, and may repeat inputs.

        index   int64[outputs, taps], inputs read, in the dialect's order of taps
        weight  floating[outputs, taps], their weights in the dialect's arithmetic type

        Taps on one input are added in that type, in the order given, then widened to float64. A
        band runs from the first to the last non-zero weight and holds the zeros between; an output
        without non-zero weights gets an empty band. Bands are then widened with zeros until they
        ascend, or descend if that takes fewer. Memory is O(taps + weights).
        """
        return cls.from_blocks([(index, weight)], inputs=inputs)

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], *, inputs: int) -> BandedMap:
        """Build a map as `from_taps` does, from blocks of outputs.

        Each block is freed once read. Memory is O(outputs + weights) besides the blocks.
        """
        spans: list[Spans] = []
        pieces: list[Weights] = []
        for index, weight in blocks:
            index, weight = ascending_taps(index, weight)  # noqa: PLW2901
            weight = merged_weights(index, weight)  # noqa: PLW2901
            span = non_zero_spans(index, weight, inputs=inputs)
            spans.append(span)
            pieces.append(packed_weights(index, weight, span))
        span = joined(spans)
        band = monotone_spans(span)
        offset = _offsets(counts := band.stop - band.start)
        return cls._sound(
            inputs,
            start=band.start,
            stop=band.stop,
            counts=counts,
            offset=offset,
            weight=placed_weights(pieces, span=span, band=band, offset=offset),
        )

    @classmethod
    def _sound(
        cls,
        inputs: int,
        *,
        start: Indices,
        stop: Indices,
        counts: Indices,
        offset: Indices,
        weight: Weights,
    ) -> BandedMap:
        """Make a map from consistent arrays, without the checks of the constructor."""
        if len(start):
            low, high = min(start.item(0), start.item(-1)), max(stop.item(0), stop.item(-1))
            _check_reach(low, high, inputs=inputs)
        made = object.__new__(cls)
        vars(made).update(
            outputs=len(start),
            inputs=inputs,
            start=start,
            stop=stop,
            counts=counts,
            offset=offset,
            weight=weight,
        )
        return made

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
        stops. (A map that descends only by its empty bands, which `from_taps` never makes, gets
        ascending ones instead.)
        """
        ended = _counts_up_to(self.stop, self.inputs)
        begun = _counts_up_to(self.start, self.inputs)
        if self.is_increasing:
            first, last = ended, begun
        else:
            first, last = self.outputs - begun, self.outputs - ended
        offset = _offsets(counts := last - first)
        shift = offset[:-1] - first
        weight = np.empty_like(self.weight)
        for part, output, column in self._weights_in_blocks():
            place = shift[column]
            place += output
            weight[place] = self.weight[part]
        return self._sound(
            self.outputs, start=first, stop=last, counts=counts, offset=offset, weight=weight
        )

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
        return self._sound(
            high - low,
            start=start - low,
            stop=past - low,
            counts=counts,
            offset=offset,
            weight=weight,
        )

    def dense(self) -> Weights:
        """Return the matrix, float64[outputs, inputs], for tests and debugging."""
        matrix = np.zeros((self.outputs, self.inputs))
        for part, output, column in self._weights_in_blocks():
            matrix[output, column] = self.weight[part]
        return matrix

    def _weights_in_blocks(self) -> Iterator[tuple[slice, Indices, Indices]]:
        """Yield slices of weights, with each weight's output and input."""
        shift = self.start - self.offset[:-1]
        for low in range(0, self.nnz, _BLOCK_WEIGHTS):
            ask()
            high = min(low + _BLOCK_WEIGHTS, self.nnz)
            ends = np.array([low, high - 1])
            rows: Indices = np.searchsorted(self.offset, ends, "right") - 1
            first, last = int(rows[0]), int(rows[1])
            bounds = np.clip(self.offset[first : last + 2], low, high)
            counts: Indices = bounds[1:] - bounds[:-1]
            output: Indices = np.repeat(np.arange(first, last + 1), counts)
            column = np.arange(low, high)
            column += shift[output]
            yield slice(low, high), output, column

    def _check_arrays(self) -> None:
        for name, array, kind, length in (
            ("start", self.start, np.int64, self.outputs),
            ("offset", self.offset, np.int64, self.outputs + 1),
            ("weight", self.weight, np.float64, len(self.weight)),
        ):
            if array.dtype != kind or array.shape != (length,):
                raise ValueError(
                    f"{name} is {array.dtype}{list(array.shape)}; {self.outputs} outputs need "
                    f"{np.dtype(kind)}[{length}]"
                )
        if self.offset[0] != 0 or self.offset[-1] != self.nnz or not ascends(self.offset):
            raise ValueError(
                f"offset runs from {self.offset[0]} to {self.offset[-1]}; it must ascend from 0 to "
                f"{self.nnz}, the number of weights"
            )

    def _check_bands(self) -> None:
        if not self.outputs:
            return
        _check_reach(int(self.start.min()), int(self.stop.max()), inputs=self.inputs)
        descends = ascends(self.start[::-1]) and ascends(self.stop[::-1])
        if not descends and not self.is_increasing:
            raise ValueError(
                "starts and stops of the bands neither all ascend nor all descend; explicit zeros "
                "make them, as BandedMap.from_taps adds"
            )


def _check_reach(low: int, high: int, *, inputs: int) -> None:
    if low < 0 or high > inputs:
        raise ValueError(f"bands cover the inputs {low} .. {high - 1}; there are 0 .. {inputs - 1}")


def _offsets(counts: Indices) -> Indices:
    offset = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=offset[1:])
    return offset


def _counts_up_to(positions: Indices, length: int) -> Indices:
    """Return the number of positions up to each j below length."""
    return np.bincount(positions, minlength=length + 1)[:length].cumsum(dtype=np.int64)
