"""Metrics and latest errors of processes, in memory shared with the supervisor.

The metrics of a process are an array of float64. The index of every time series follows from the
definitions alone, so workers are merged by adding their arrays. Nothing is sent: the array of a
busy or killed worker can still be read. prometheus_client's multiprocess mode is not used: it keeps
files of ended processes, and has neither counts nor CPU time and memory of each process.

Notes follow the array, in a fixed size: a description of the process, and its latest errors. A
repeated error only increments its count, so that it does not displace others.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.definitions import COUNTS, RESTARTS, STATES, Metric

Floats = NDArray[np.float64]

# Errors stored for each process.
MOST = 32
_TEXT_BYTES = 2016
# A count of 0 marks a slot without text.
_SLOT = np.dtype(
    [("latest", "f8"), ("count", "u8"), ("checksum", "u8"), ("text", f"S{_TEXT_BYTES}")]
)
# The first slot holds the description of the process.
NOTES_BYTES = (1 + MOST) * _SLOT.itemsize
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


class Notes:
    """Description and errors of one process, in NOTES_BYTES of memory.

    Written by one thread.
    """

    def __init__(self, memory: memoryview) -> None:
        self._slots = np.frombuffer(memory, _SLOT)
        self._latest, self._counts = self._slots["latest"], self._slots["count"]
        # Slot and monotonic time of the first occurrence.
        self._known: dict[tuple[str, ...], tuple[int, float]] = {}
        self._number = 0

    def describe(self, facts: Mapping[str, str]) -> None:
        """Write the description of this process, replacing the previous one."""
        self._write(0, facts)

    def description(self) -> dict[str, str]:
        """Return the description of the process; empty if none was written."""
        return self._read(0)

    def error(self, *, alike: str = "", **told: str) -> None:
        """Record an error.

        Errors with the same `alike`, or else the same message, share one count.

        told  text fields of NotedError
        """
        key = (told["method"], told["operator"], told["reason"], alike or told["message"])
        now = time.monotonic()
        slot, first = self._known.get(key, (0, 0.0))
        if slot and now - first < _SAME_S:
            self._latest[slot] = time.time()
            self._counts[slot] += 1
            return
        slot = 1 + self._number % MOST
        self._number += 1
        self._known = {other: at for other, at in self._known.items() if at[0] != slot}
        self._known[key] = slot, now
        self._write(slot, told | {"message": told["message"][:_LONGEST]})

    def errors(self) -> list[NotedError]:
        """Return the stored errors, unordered."""
        return [
            NotedError(float(self._latest[slot]), int(self._counts[slot]), **told)
            for slot in range(1, 1 + MOST)
            if (told := self._read(slot))
        ]

    def _write(self, slot: int, told: Mapping[str, str]) -> None:
        text = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")
        if len(text) > _TEXT_BYTES:
            text = json.dumps({name: value[:32] for name, value in told.items()}).encode()
        # A reader that sees a partial write finds a checksum mismatch.
        self._slots[slot] = (time.time(), 1, zlib.crc32(text), text)

    def _read(self, slot: int) -> dict[str, Any]:
        text = bytes(self._slots["text"][slot])
        is_whole = self._counts[slot] and zlib.crc32(text) == self._slots["checksum"][slot]
        return dict(json.loads(text)) if is_whole else {}


def newest(errors: Iterable[NotedError]) -> list[NotedError]:
    """Return the latest errors, at most MOST; the latest one first."""
    return sorted(errors, key=lambda one: one.latest, reverse=True)[:MOST]


def width(metric: Metric) -> int:
    """Return the number of cells of one time series.

    A histogram has its sum, then a count per bucket.
    """
    return len(metric.buckets) + 2 if metric.buckets else 1


_STORED = (*COUNTS, *STATES)
# Cell 0 identifies the layout of the others.
_ENDS = tuple(accumulate((metric.children * width(metric) for metric in _STORED), initial=1))
_STARTS = {metric.name: start for metric, start in zip(_STORED, _ENDS, strict=False)}

COUNTED = _ENDS[len(COUNTS)]
TOTAL = _ENDS[-1]
_SIZE = 8 * TOTAL + NOTES_BYTES
_LAYOUT = float(zlib.crc32(repr((_STORED, _SLOT)).encode()))


def span(metric: Metric) -> slice:
    """Return the cells of a metric."""
    start = _STARTS[metric.name]
    return slice(start, start + metric.children * width(metric))


def place(metric: Metric, *values: str) -> int:
    """Return the first cell of a time series.

    The series is given by the values of its labels.
    """
    child = 0
    for label, value in zip(metric.labels, values, strict=True):
        child = child * len(label.values) + label.index(value)
    return _STARTS[metric.name] + child * width(metric)


class Cells:
    """Metrics of one process, in shared or its own memory.

    Written by one thread.

    fd     file descriptor of shared memory, for the process to inherit
    pid    of the process; 0 until it has started
    notes  description and errors of the process
    """

    def __init__(self, memory: mmap.mmap | None = None, *, fd: int = -1) -> None:
        self.fd, self.pid = fd, 0
        memory = mmap.mmap(-1, _SIZE) if memory is None else memory
        everything = memoryview(memory).cast("B")
        self.values = everything[: 8 * TOTAL].cast("d")
        self.array: Floats = np.frombuffer(memory, np.float64, TOTAL)
        self.notes = Notes(everything[8 * TOTAL :])

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
        """Return the cells of fd.

        None if the supervisor runs another version of the package.
        """
        with os.fdopen(fd):
            size = os.fstat(fd).st_size
            cells = cls(mmap.mmap(fd, size)) if size == _SIZE else None
        return cells if cells is not None and cells.values[0] == _LAYOUT else None

    def observe(self, histogram: int, bounds: tuple[float, ...], value: float) -> None:
        """Add a value to the histogram whose first cell is given."""
        values = self.values
        values[histogram] += value
        values[histogram + 1 + bisect_left(bounds, value)] += 1.0


@dataclass(frozen=True, slots=True)
class Worker:
    """Metrics and processes of one worker at one moment.

    name    value of the worker label
    values  [TOTAL]; counts of all its processes so far, states of the running ones
    pids    of the running processes: none while it is down, two during a replacement
    """

    name: str
    values: Floats
    pids: tuple[int, ...]


class Ledger:
    """The cells of one worker's processes. Thread-safe.

    wanted  whether metrics are collected
    """

    def __init__(self, name: str, *, wanted: bool = True) -> None:
        self._name = name
        self._wanted = wanted
        self._lock = threading.Lock()
        self._running: list[Cells] = []
        self._ended = np.zeros(COUNTED)
        self._errors_of_ended: list[NotedError] = []

    def add(self, cells: Cells) -> None:
        """Include a process in readings from now on."""
        with self._lock:
            self._running.append(cells)

    @contextmanager
    def process(self) -> Generator[Cells | None]:
        """Make cells for a new process.

        The process has ended when the block exits.
        """
        if not self._wanted:
            yield None
            return
        cells = Cells.shared()
        self.add(cells)
        try:
            yield cells
        finally:
            with self._lock:
                self._running.remove(cells)
                self._ended += cells.array[:COUNTED]
                self._errors_of_ended = newest([*self._errors_of_ended, *cells.notes.errors()])
                os.close(cells.fd)

    def note_restart(self) -> None:
        """Count a process that replaces an ended one."""
        with self._lock:
            self._ended[place(RESTARTS)] += 1.0

    def read(self) -> Worker:
        """Return the current state; counts never decrease between readings."""
        with self._lock:
            values = np.sum([np.zeros(TOTAL), *(cells.array for cells in self._running)], axis=0)
            values[:COUNTED] += self._ended
            pids = tuple(cells.pid for cells in self._running if cells.pid)
            return Worker(self._name, values, pids)

    def errors(self) -> list[NotedError]:
        """Return the latest errors, including those of ended processes."""
        with self._lock:
            running = [error for cells in self._running for error in cells.notes.errors()]
            return newest([*self._errors_of_ended, *running])

    def description(self) -> dict[str, str]:
        """Return the description of the latest process; empty if there is none."""
        with self._lock:
            running = [cells.notes.description() for cells in reversed(self._running)]
        return next(filter(None, running), dict[str, str]())


class Ledgers:
    """The ledgers of all workers of a server.

    certificate_expires_s  returns the expiry of the server's certificate, in seconds since 1970;
                           None if there is no certificate
    """

    def __init__(self, workers: int, *, wanted: bool = True) -> None:
        self.all = tuple(Ledger(str(number), wanted=wanted) for number in range(workers))
        self.certificate_expires_s: Callable[[], float | None] = lambda: None

    def read(self) -> list[Worker]:
        """Return the current state of every worker."""
        return [ledger.read() for ledger in self.all]

    @classmethod
    def of_this_process(cls, cells: Cells) -> Ledgers:
        """Make the ledgers of a server that is one process."""
        ledgers = cls(1)
        cells.pid = os.getpid()
        ledgers.all[0].add(cells)
        return ledgers
