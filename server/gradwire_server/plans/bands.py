"""From an operator's taps to bands that ascend or descend together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Taps = npt.NDArray[np.floating[Any]]

# Taps of some outputs: their inputs and their weights.
Block = tuple[Indices, Taps]


class Spans(NamedTuple):
    """Half-open ranges of inputs, one per output: int64[outputs] each."""

    start: Indices
    stop: Indices


def ascending_taps(index: Indices, weight: Taps) -> tuple[Indices, Taps]:
    """Sort each output's taps by input; taps on one input keep their order."""
    if _all(index[:, 1:] >= index[:, :-1]):
        return index, weight
    order = np.argsort(index, axis=1, kind="stable")
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(weight, order, axis=1)


def merged_weights(index: Indices, weight: Taps) -> Taps:
    """Add up taps on one input, in order and in weight's type; the last of them gets the sum.

    The others get 0. Both arrays are [outputs, taps], ascending as `ascending_taps` leaves them.
    """
    repeats = index[:, 1:] == index[:, :-1]
    if not np.count_nonzero(repeats):
        return weight
    sums = weight.copy(order="K")
    for tap in range(repeats.shape[1]):
        (again,) = repeats[:, tap].nonzero()
        if len(again):
            sums[again, tap + 1] += sums[again, tap]
            sums[again, tap] = 0
    return sums


def non_zero_spans(index: Indices, weight: Taps, *, inputs: int) -> Spans:
    """Return the spans from first to last non-zero tap; (inputs, 0) where there is none."""
    some = weight != 0
    if some.size and _all(some):
        return Spans(index[:, 0].copy(), index[:, -1] + 1)
    return Spans(
        np.where(some, index, inputs).min(axis=1, initial=inputs),
        np.where(some, index + 1, 0).max(axis=1, initial=0),
    )


def monotone_spans(spans: Spans) -> Spans:
    """Widen spans as little as possible until both sides ascend, or until both descend.

    Ascending is chosen unless descending takes fewer inputs in all. Empty spans, given as
    (inputs, 0), stay empty where no two spans before and after them overlap.
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
    # A fraction of the time of flags.all(), which counts where arrays are short.
    return int(np.count_nonzero(flags)) == flags.size


def _ascending(spans: Spans) -> Spans:
    start: Indices = np.minimum.accumulate(spans.start[::-1])[::-1]
    stop: Indices = np.maximum.accumulate(spans.stop)
    # An empty span between others that do not overlap comes out as stop <= start: any place from
    # stop to start keeps the order.
    return Spans(np.minimum(start, stop), stop)


def _total(spans: Spans) -> int:
    return int(np.sum(spans.stop - spans.start))


def joined(spans: Sequence[Spans]) -> Spans:
    """Return the spans of all blocks, one after the other."""
    if len(spans) == 1:
        return spans[0]
    return Spans(*(np.concatenate(sides) for sides in zip(*spans, strict=True)))


def packed_weights(index: Indices, weight: Taps, span: Spans) -> Weights:
    """Return the merged taps within their spans, output by output, zeros where there is no tap."""
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
    """Lay weights out as float64[offset[-1]], output by output, zeros where a band is wider.

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
