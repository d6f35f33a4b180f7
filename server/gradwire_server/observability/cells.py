"""Metrics and latest errors of one process, in memory that another process may read.

The metrics are an array of float64. The index of every time series follows from the definitions
alone, so no index is shared, and workers' metrics are merged by adding their arrays. The supervisor
makes the array in memory that it shares with one worker: nothing is sent, the array of a busy or
dead worker can still be read, and the counts of a killed worker are not lost.

prometheus_client's multiprocess mode was considered and rejected: it needs a folder named by the
environment before the first import, leaves files of ended processes there, has no CPU and memory
collectors, and takes about four times as long for an observation.

The notes follow the array in the same memory: text that describes the process, and its latest
errors. They have a fixed size: a new error replaces the oldest one, and a repeated error only
increments its count, so a thousand refusals of one caller do not displace other errors.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.definitions import COUNTS, STATES, Metric

# Number of the error, time of its latest occurrence, count, length and checksum of the text.
_HEAD = struct.Struct("<QdQII")
_AGAIN = struct.Struct("<dQ")
_AGAIN_AT = 8
_SLOT_BYTES = 2048
_FACTS_BYTES = 4096
# Errors stored for each process.
MOST = 32
NOTES_BYTES = _FACTS_BYTES + MOST * _SLOT_BYTES
# An error repeated after more than this time is stored as a new one.
_SAME_S = 60.0
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class NotedError:
    """An error of one or more calls.

    latest      time of the latest occurrence, in seconds since the Unix epoch
    count       number of occurrences
    request_id  of the first call
    """

    latest: float
    count: int
    method: str
    operator: str
    status: str
    reason: str
    message: str
    request_id: str


@dataclass(slots=True)
class _StoredNotes:
    """Slot of an error, monotonic time of its first occurrence, and its count."""

    slot: int
    first: float
    count: int = 1


class Notes:
    """Description and errors of one process, in NOTES_BYTES of memory. Written by one thread."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._kept: dict[tuple[str, ...], _StoredNotes] = {}
        self._keys: list[tuple[str, ...] | None] = [None] * MOST
        self._number = 0

    def tell(self, facts: Mapping[str, str]) -> None:
        """Write the description of this process, replacing the previous one."""
        self._write(0, _FACTS_BYTES, 1, dict(facts))

    def told(self) -> dict[str, str]:
        """Return the description of the process; empty if none was written."""
        return self._read(0, _FACTS_BYTES) or {}

    def error(
        self,
        *,
        method: str,
        operator: str,
        status: str,
        reason: str,
        message: str,
        request_id: str,
        alike: str = "",
    ) -> None:
        """Record an error; errors with the same `alike`, or else message, share one count."""
        key = (method, operator, reason, alike or message)
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept.first < _SAME_S:
            kept.count += 1
            again = _place(kept.slot) + _AGAIN_AT
            _AGAIN.pack_into(self._memory, again, time.time(), kept.count)
            return
        slot = self._number % MOST
        self._number += 1
        old = self._keys[slot]
        if old is not None and self._kept[old].slot == slot:
            del self._kept[old]
        self._keys[slot], self._kept[key] = key, _StoredNotes(slot, now)
        names = {"method": method, "operator": operator, "status": status, "reason": reason}
        told = {**names, "message": message[:_LONGEST], "request_id": request_id}
        self._write(_place(slot), _SLOT_BYTES, self._number, told)

    def errors(self) -> list[NotedError]:
        """Return the stored errors, unordered."""
        found: list[NotedError] = []
        for slot in range(MOST):
            told = self._read(_place(slot), _SLOT_BYTES)
            if told is not None:
                latest, count = _AGAIN.unpack_from(self._memory, _place(slot) + _AGAIN_AT)
                found.append(NotedError(latest, count, **told))
        return found

    def _write(self, place: int, size: int, number: int, told: Mapping[str, str]) -> None:
        text = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")
        if len(text) > size - _HEAD.size:
            shorter = {name: value[: size // 64] for name, value in told.items()}
            text = json.dumps(shorter).encode()
        # A reader that sees a partial write finds a checksum mismatch.
        start = place + _HEAD.size
        self._memory[start : start + len(text)] = text
        _HEAD.pack_into(self._memory, place, number, time.time(), 1, len(text), zlib.crc32(text))

    def _read(self, place: int, size: int) -> dict[str, Any] | None:
        number, _, _, length, checksum = _HEAD.unpack_from(self._memory, place)
        if not number or length > size - _HEAD.size:
            return None
        start = place + _HEAD.size
        text = bytes(self._memory[start : start + length])
        if zlib.crc32(text) != checksum:
            return None
        told: dict[str, Any] = json.loads(text)
        return told


def newest(errors: Iterable[NotedError]) -> list[NotedError]:
    """Return the latest errors, at most MOST; the latest one first."""
    return sorted(errors, key=lambda one: one.latest, reverse=True)[:MOST]


def _place(slot: int) -> int:
    return _FACTS_BYTES + slot * _SLOT_BYTES


_BYTES = 8


def width(metric: Metric) -> int:
    """Return the cells of one time series; a histogram has its sum, then a count per bucket."""
    return len(metric.buckets) + 2 if metric.kind == "histogram" else 1


_STORED = (*COUNTS, *STATES)
# Cell 0 identifies the layout of the others.
_ENDS = tuple(accumulate((metric.children * width(metric) for metric in _STORED), initial=1))
_STARTS = {metric.name: start for metric, start in zip(_STORED, _ENDS, strict=False)}

COUNTED = _ENDS[len(COUNTS)]
TOTAL = _ENDS[-1]
_SIZE = TOTAL * _BYTES + NOTES_BYTES
_LAYOUT = float(zlib.crc32(repr((_STORED, NOTES_BYTES)).encode()))


def span(metric: Metric) -> slice:
    """Return the cells of a metric."""
    start = _STARTS[metric.name]
    return slice(start, start + metric.children * width(metric))


def place(metric: Metric, *values: str) -> int:
    """Return the first cell of a time series, given the values of its labels."""
    child = 0
    for label, value in zip(metric.labels, values, strict=True):
        child = child * len(label.values) + label.index(value)
    return _STARTS[metric.name] + child * width(metric)


class Cells:
    """The metrics of one process. Written by one thread.

    fd     file descriptor of shared memory; None for memory of this process alone
    notes  description and errors of the process
    """

    def __init__(self, memory: bytearray | mmap.mmap, *, fd: int | None = None) -> None:
        self.fd = fd
        everything = memoryview(memory).cast("B")
        self.values = everything[: TOTAL * _BYTES].cast("d")
        self.array: NDArray[np.float64] = np.frombuffer(memory, np.float64, TOTAL)
        self.notes = Notes(everything[TOTAL * _BYTES :])

    @classmethod
    def private(cls) -> Cells:
        """Make cells for this process."""
        return cls(bytearray(_SIZE))

    @classmethod
    def shared(cls) -> Cells:
        """Make cells for another process, which attaches them by fd."""
        fd = os.memfd_create("gradwire-metrics")
        os.ftruncate(fd, _SIZE)
        cells = cls(mmap.mmap(fd, _SIZE), fd=fd)
        cells.values[0] = _LAYOUT
        return cells

    @classmethod
    def attached(cls, fd: int) -> Cells | None:
        """Return the cells of fd; None if their layout differs from this process's.

        Layouts differ if the package was replaced since the supervisor started.
        """
        try:
            size = os.fstat(fd).st_size
            cells = cls(mmap.mmap(fd, size)) if size == _SIZE else None
        finally:
            os.close(fd)
        return cells if cells is not None and cells.values[0] == _LAYOUT else None

    def close(self) -> None:
        """Close fd once the other process has inherited it; the mapped memory stays valid."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def observe(self, histogram: int, bounds: tuple[float, ...], value: float) -> None:
        """Add a value to the histogram whose first cell is given."""
        values = self.values
        values[histogram] += value
        values[histogram + 1 + bisect_left(bounds, value)] += 1.0
