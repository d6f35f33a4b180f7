"""Metrics and latest errors of processes, in memory shared with the supervisor.

The metrics of a process are an array of float64. The index of every time series follows from the
definitions alone, so workers are merged by adding their arrays. Nothing is sent: the array of a
busy or killed worker can still be read. prometheus_client's multiprocess mode is not used: it keeps
files of ended processes, and has neither counts nor CPU time and memory of each process.

Notes follow the array as JSON: a description of the process, and its latest errors. A repeated
error only increments its count, so that it does not displace others.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.definitions import COUNTS, RESTARTS, STATES, Metric

Floats = NDArray[np.float64]

# Errors stored for each process, and characters of each of their texts.
MOST = 32
_LONGEST = 600
# Enough even if JSON needs 12 bytes for a character. Unused pages take no memory.
NOTES_BYTES = 2 << 20


class Notes:
    """Description and latest errors of one process, in NOTES_BYTES of memory.

    Written by one thread.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._description: Mapping[str, str] = {}
        self._errors: dict[tuple[str, ...], dict[str, Any]] = {}
        # The notes read last, and their checksum.
        self._told: tuple[dict[str, str], list[dict[str, Any]]] = {}, []
        self._checksum = 0

    def error(self, *, alike: str = "", **told: str) -> None:
        """Record an error.

        Errors with the same `alike`, or else the same message, share one count.

        told  method, operator, status, reason, message and request_id
        """
        key = (told["method"], told["operator"], told["reason"], alike or told["message"])
        count = self._errors.pop(key, {"count": 0})["count"]
        if len(self._errors) == MOST:
            del self._errors[next(iter(self._errors))]
        texts = {name: text[:_LONGEST] for name, text in told.items()}
        self._errors[key] = {"latest": time.time(), "count": count + 1, **texts}
        if not count:
            self.write(self._description)

    def write(self, description: Mapping[str, str]) -> None:
        """Write facts of the process and its errors for others to read."""
        self._description = description
        told = {"description": description, "errors": list(self._errors.values())}
        text = json.dumps(told).encode()
        # A reader that sees a partial write finds a checksum mismatch.
        head = np.array([len(text), zlib.crc32(text)], np.uint64).tobytes()
        self._memory[: len(head) + len(text)] = head + text

    def read(self) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Return the written description and errors, the latest one last."""
        size, checksum = np.frombuffer(self._memory, np.uint64, 2).tolist()
        if checksum != self._checksum:
            text = bytes(self._memory[16 : 16 + size])
            if zlib.crc32(text) != checksum:
                return {}, []
            told = json.loads(text)
            self._told, self._checksum = (told["description"], told["errors"]), checksum
        return self._told


_STORED = (*COUNTS, *STATES)
# Cell 0 identifies the layout of the others; the last one is the time of the latest heartbeat.
_CELLS = np.dtype([("", float), *((each.name, float, each.shape) for each in _STORED)])
_BEAT = _CELLS.itemsize // 8
TOTAL = _BEAT + 1
_SIZE = 8 * TOTAL + NOTES_BYTES
_LAYOUT = float(zlib.crc32(repr(_STORED).encode()))


def cells(metric: Metric, values: Floats) -> Floats:
    """Return the cells of a metric: [label, ..., cell]."""
    found: Floats = values[:_BEAT].view(_CELLS)[metric.name][0]
    return found


@lru_cache(maxsize=1 << 14)
def place(metric: Metric, *values: str) -> int:
    """Return the first cell of the series with these label values."""
    numbers = [label.index(value) for label, value in zip(metric.labels, values, strict=True)]
    return int(cells(metric, _PLACES)[(*numbers, 0)])


_PLACES = np.arange(TOTAL, dtype=float)
# The first cell that is no count.
COUNTED = int(cells(STATES[0], _PLACES).min())


class Cells:
    """Metrics of one process, in shared or its own memory.

    Written by one thread.

    fd     file descriptor of shared memory, for the process to inherit; -1 for own memory
    pid    of the process; 0 until it has started
    notes  description and errors of the process
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd, self.pid = fd, 0
        memory = mmap.mmap(fd, _SIZE)
        everything = memoryview(memory).cast("B")
        self.values = everything[: 8 * TOTAL].cast("d")
        self.array: Floats = np.frombuffer(memory, np.float64, TOTAL)
        self.notes = Notes(everything[8 * TOTAL :])
        self.beat()

    @classmethod
    def shared(cls) -> Cells:
        """Make cells for another process, which attaches them by fd."""
        fd = os.memfd_create("gradwire-metrics")
        os.ftruncate(fd, _SIZE)
        cells = cls(fd)
        cells.values[0] = _LAYOUT
        return cells

    @classmethod
    def attached(cls, fd: int) -> Cells | None:
        """Return the cells of fd.

        None if the supervisor runs another version of the package.
        """
        with os.fdopen(fd):
            if os.fstat(fd).st_size != _SIZE:
                return None
            cells = cls(fd)
        return cells if cells.values[0] == _LAYOUT else None

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        values, first = self.values, place(metric, *labels)
        values[first] += value
        values[first + 1 + bisect_left(metric.buckets, value)] += 1.0

    def beat(self) -> None:
        """Note that the event loop of the process runs."""
        self.values[_BEAT] = time.monotonic()


class Worker(NamedTuple):
    """Metrics and processes of one worker at one moment.

    name      value of the worker label
    values    [TOTAL]; counts of all its processes so far, states of the running ones
    pids      of the running processes: none while it is down, two during a replacement
    silent_s  seconds since the latest heartbeat of a running process
    facts     description of the latest process that has one
    errors    latest errors of all processes
    """

    name: str
    values: Floats
    pids: tuple[int, ...]
    silent_s: float
    facts: dict[str, str]
    errors: list[dict[str, Any]]


class Ledger:
    """The cells of one worker's processes. Thread-safe.

    number  of the worker
    own     cells of this process, if it is the worker
    """

    def __init__(self, number: int, own: Cells | None = None) -> None:
        self._name = str(number)
        self._lock = threading.Lock()
        self._running: list[Cells] = []
        if own is not None:
            own.pid = os.getpid()
            self._running.append(own)
        self._ended = np.zeros(COUNTED)
        self._errors_of_ended: list[dict[str, Any]] = []

    @contextmanager
    def process(self) -> Generator[Cells]:
        """Make cells for a process, which ends with the block."""
        cells = Cells.shared()
        with self._lock:
            self._running.append(cells)
        try:
            yield cells
        finally:
            with self._lock:
                self._running.remove(cells)
                self._ended += cells.array[:COUNTED]
                self._errors_of_ended = [*self._errors_of_ended, *cells.notes.read()[1]][-MOST:]
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
            now = time.monotonic()
            silent_s = min((now - cells.array[_BEAT] for cells in self._running), default=0.0)
            latest, errors = dict[str, str](), self._errors_of_ended
            for cells in self._running:
                facts, told = cells.notes.read()
                latest, errors = facts or latest, errors + told
            return Worker(self._name, values, pids, silent_s, latest, errors)
