"""Counts of the last minutes: current and past rates, and quantiles."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from gradwire_server.observability.cells import Floats, Worker, place, span, width
from gradwire_server.observability.definitions import (
    ITEMS,
    LAG,
    METHOD,
    PHASE_DURATION,
    RECEIVED,
    REQUEST_DURATION,
    SENT,
    STATUS_LABEL,
    STEP,
)

EVERY_S = 5.0
# Readings in five minutes, including both ends.
MOST = 61
# Statuses not counted as errors.
_FINE = ("OK", "CANCELLED")


@dataclass(frozen=True, slots=True)
class Totals:
    """All counts up to one moment.

    calls        [method, operator]
    failed       [operator]           calls with another status than OK and CANCELLED
    items        [operator]           answers within EvaluateMany
    items_failed [operator]
    durations    [operator, bucket]   of calls
    phases       [phase, bucket]
    tensor_bytes []                   received and sent
    beats        [worker]             heartbeats of the event loop
    """

    calls: Floats
    failed: Floats
    items: Floats
    items_failed: Floats
    durations: Floats
    phases: Floats
    tensor_bytes: Floats
    beats: Floats

    def since(self, before: Totals) -> Totals:
        """Return the counts since an earlier moment."""
        return Totals(
            **{
                one.name: getattr(self, one.name) - getattr(before, one.name)
                for one in fields(self)
            }
        )


def totals(workers: Sequence[Worker]) -> Totals:
    """Return the sum of the workers' counts."""
    values = np.sum([worker.values for worker in workers], axis=0)
    shape = [len(label.values) for label in REQUEST_DURATION.labels]
    requests = values[span(REQUEST_DURATION)].reshape(*shape, width(REQUEST_DURATION))
    # A histogram's first cell is its sum, the others are its buckets.
    by_status = requests[..., 1:].sum(axis=2)
    wrong = np.array([status not in _FINE for status in STATUS_LABEL.values])
    items = values[span(ITEMS)].reshape([len(label.values) for label in ITEMS.labels])
    spent = values[span(PHASE_DURATION)].reshape(-1, shape[1], width(PHASE_DURATION))
    return Totals(
        calls=by_status.sum(axis=(2, 3)),
        failed=by_status[:, :, wrong].sum(axis=(0, 2, 3)),
        items=items.sum(axis=(1, 2)),
        items_failed=items[:, :, wrong].sum(axis=(1, 2)),
        durations=by_status.sum(axis=(0, 2)),
        phases=spent[..., 1:].sum(axis=1),
        tensor_bytes=np.array(_tensor_bytes(values)),
        beats=np.array([worker.values[span(LAG)][1:].sum() for worker in workers]),
    )


class History:
    """Reads the totals periodically in its own thread. Thread-safe.

    read  returns the current totals
    """

    def __init__(self, read: Callable[[], Totals]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._seen = deque([(time.monotonic(), read())], MOST)
        self._silent_since = np.full(self._seen[0][1].beats.shape, self._seen[0][0])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-history", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def note(self) -> None:
        """Read once."""
        now, read = time.monotonic(), self._read()
        with self._lock:
            alive = read.beats > self._seen[-1][1].beats
            self._silent_since[alive] = now
            self._seen.append((now, read))

    def silent_s(self) -> list[float]:
        """Return the seconds since each worker's last heartbeat.

        Up to EVERY_S is usual.
        """
        with self._lock:
            since = [float(at) for at in self._silent_since]
        now = time.monotonic()
        return [now - at for at in since]

    def steps(self) -> list[tuple[float, Totals]]:
        """Return seconds and counts between successive readings."""
        with self._lock:
            seen = list(self._seen)
        return [
            (later - sooner, after.since(before))
            for (sooner, before), (later, after) in pairwise(seen)
        ]

    def since(self, seconds: float, read: Totals) -> tuple[float, Totals]:
        """Return the duration and the counts of a window up to now.

        The window is at least `seconds` long, but not longer than the whole history. Its duration
        is in seconds.
        """
        now = time.monotonic()
        with self._lock:
            times = [at for at, _ in self._seen]
            at, before = self._seen[max(0, bisect_left(times, now - seconds) - 1)]
        return now - at, read.since(before)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.note()


def quantile(bounds: Sequence[float], counts: Floats, share: float) -> float | None:
    """Return a quantile of a histogram; None if it is empty.

    It is the value below which this share of the values lies.

    counts  [bucket], the unbounded one last

    Values are assumed to be evenly spread within a bucket, as in Prometheus' histogram_quantile; a
    quantile beyond the last bound is returned as that bound.
    """
    total = float(counts.sum())
    if not total:
        return None
    rank = share * total
    below = 0.0
    for number, count in enumerate(map(float, counts)):
        if below + count >= rank and count:
            if number == len(bounds):
                break
            lower = bounds[number - 1] if number else 0.0
            return lower + (bounds[number] - lower) * (rank - below) / count
        below += count
    return bounds[-1]


def _tensor_bytes(values: Floats) -> float:
    """Add up bytes received and sent.

    Bytes of streams count as they are computed, not at their end.
    """
    streams = METHOD.index("EvaluateStream")
    others = sum(
        values[place(metric, method)]
        for metric in (RECEIVED, SENT)
        for number, method in enumerate(METHOD.values)
        if number != streams
    )
    return float(others + values[place(STEP)])
