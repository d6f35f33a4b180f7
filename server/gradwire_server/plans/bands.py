"""From an operator's taps to bands that ascend or descend together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Taps = npt.NDArray[np.floating[Any]]


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


def placed_weights(
    index: Indices, weight: Taps, *, span: Spans, band: Spans, offset: Indices
) -> Weights:
    """Lay merged taps out as float64[offset[-1]], output by output, zeros where a band has no tap.

    span    non-zero spans of the taps, those outside are left out
    band    the bands, each holding its span
    offset  int64[outputs + 1], where each band's weights begin
    """
    some = weight != 0
    if np.count_nonzero(some) == offset[-1]:
        placed: Weights = weight[some].astype(np.float64)
        return placed  # no zero is inside a band
    inside = (index >= span.start[:, np.newaxis]) & (index < span.stop[:, np.newaxis])
    inside[:, :-1] &= index[:, :-1] != index[:, 1:]
    place = index + (offset[:-1] - band.start)[:, np.newaxis]
    result = np.zeros(offset[-1])
    result[place[inside]] = weight[inside]
    return result
