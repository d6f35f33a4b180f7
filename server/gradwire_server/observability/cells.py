"""Where one process keeps its metrics: an array of float64 that another process may read.

Its notes, which are words, lie behind the array.

The place of every time series follows from the definitions alone, so that no index is shared, and
merging the workers' metrics is adding their arrays. An array that the supervisor made lives in
memory it shares with one worker: nothing is sent, a worker that is busy or dead is read all the
same, and what one counted up to the moment it was killed is not lost.

prometheus_client's own multiprocess mode was looked at and left: it needs a folder named by the
environment before the first import, leaves the files of the dead there, has no collectors of CPU
and memory, and takes some four times as long for an observation.
"""

from __future__ import annotations

import mmap
import os
import zlib
from bisect import bisect_left
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.definitions import COUNTS, STATES, Metric
from gradwire_server.observability.notes import NOTES_BYTES, Notes

_BYTES = 8


def width(metric: Metric) -> int:
    """Cells of one time series; those of a histogram are its sum, then the count of each bucket."""
    return len(metric.buckets) + 2 if metric.kind == "histogram" else 1


_STORED = (*COUNTS, *STATES)
# Cell 0 tells which layout the others have.
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

    fd     of the memory, for a process to share it; None where it is this process's alone
    notes  what it tells in words
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
        """Make cells for another process, which attaches itself to fd."""
        fd = os.memfd_create("gradwire-metrics")
        os.ftruncate(fd, _SIZE)
        cells = cls(mmap.mmap(fd, _SIZE), fd=fd)
        cells.values[0] = _LAYOUT
        return cells

    @classmethod
    def attached(cls, fd: int) -> Cells | None:
        """Return the cells behind fd; None where the process that made them has others in mind.

        That happens where the package was replaced since the supervisor started.
        """
        try:
            size = os.fstat(fd).st_size
            cells = cls(mmap.mmap(fd, size)) if size == _SIZE else None
        finally:
            os.close(fd)
        return cells if cells is not None and cells.values[0] == _LAYOUT else None

    def close(self) -> None:
        """Close fd, once the other process has it; the memory lasts as long as it is read."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def observe(self, histogram: int, bounds: tuple[float, ...], value: float) -> None:
        """Count a value in the histogram at a cell."""
        values = self.values
        values[histogram] += value
        values[histogram + 1 + bisect_left(bounds, value)] += 1.0
