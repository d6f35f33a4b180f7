"""Counts of all workers added up, and the same as metric families with labels and values."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.cells import (
    COUNTED,
    TOTAL,
    Cells,
    NotedError,
    newest,
    span,
    width,
)
from gradwire_server.observability.definitions import (
    BUILD,
    CERTIFICATE_EXPIRES,
    COUNTS,
    REQUEST_DURATION,
    REQUESTS,
    RESTARTS,
    STATES,
    WORKER_REQUESTS,
    Metric,
)

# Label of the supervisor process.
SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Worker:
    """Metrics and processes of one worker at one moment.

    name      value of the worker label
    values    [TOTAL]; counts of all its processes so far, states of the running ones
    pids      of the running processes: none while it is down, two during a replacement
    restarts  number of processes that replaced an ended one
    """

    name: str
    values: NDArray[np.float64]
    pids: tuple[int, ...]
    restarts: int


class Running:
    """One process of a worker.

    cells  of its metrics; None if metrics are not collected
    pid    0 until the process has started
    """

    def __init__(self, cells: Cells | None, *, pid: int = 0) -> None:
        self.cells = cells
        self.pid = pid

    @property
    def fd(self) -> int | None:
        """File descriptor of the cells, for the process to inherit."""
        return None if self.cells is None else self.cells.fd

    @property
    def fds(self) -> tuple[int, ...]:
        """Every file descriptor the process inherits."""
        return () if self.fd is None else (self.fd,)

    def note_start(self, pid: int) -> None:
        """Record that the process has started and has inherited its descriptors."""
        self.pid = pid
        if self.cells is not None:
            self.cells.close()


class Ledger:
    """The processes of one worker. Thread-safe.

    wanted  whether metrics are collected
    """

    def __init__(self, name: str, *, wanted: bool = True) -> None:
        self._name = name
        self._wanted = wanted
        self._lock = threading.Lock()
        self._ended = np.zeros(COUNTED)
        self._running: list[Running] = []
        self._errors: list[NotedError] = []
        self._restarts = 0

    def add(self, running: Running) -> None:
        """Include a process in readings from now on."""
        with self._lock:
            self._running.append(running)

    @contextmanager
    def process(self) -> Generator[Running]:
        """Make cells for a new process; the process has ended when the block exits."""
        running = Running(Cells.shared() if self._wanted else None)
        self.add(running)
        try:
            yield running
        finally:
            with self._lock:
                self._running.remove(running)
                if running.cells is not None:
                    self._ended += running.cells.array[:COUNTED]
                    self._errors = newest([*self._errors, *running.cells.notes.errors()])
                    running.cells.close()

    def note_restart(self) -> None:
        """Count a process that replaces an ended one."""
        with self._lock:
            self._restarts += 1

    def read(self) -> Worker:
        """Return the current state; counts never decrease between readings."""
        values = np.zeros(TOTAL)
        with self._lock:
            for running in self._running:
                if running.cells is not None:
                    values += running.cells.array
            values[:COUNTED] += self._ended
            pids = tuple(running.pid for running in self._running if running.pid)
            return Worker(self._name, values, pids, self._restarts)

    def errors(self) -> list[NotedError]:
        """Return the latest errors, including those of ended processes."""
        with self._lock:
            running = [one.cells.notes.errors() for one in self._running if one.cells is not None]
            return newest([*self._errors, *(error for errors in running for error in errors)])

    def told(self) -> dict[str, str]:
        """Return the description of the latest process; empty if there is none."""
        with self._lock:
            running = [one.cells.notes.told() for one in self._running if one.cells is not None]
        return next((told for told in reversed(running) if told), dict[str, str]())


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
        ledgers.all[0].add(Running(cells, pid=os.getpid()))
        return ledgers


# Metrics with few time series return all of them from the start; others only nonzero ones.
_FEW_CELLS = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """One time series, or one histogram.

    labels   values, in the order of the metric's label names
    value    of a counter or gauge; the sum of a histogram
    buckets  count of each bucket of a histogram, the unbounded one last
    """

    labels: tuple[str, ...]
    value: float
    buckets: tuple[float, ...] = ()

    @property
    def count(self) -> float:
        """Number of values of a histogram."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its samples."""

    metric: Metric
    samples: tuple[Sample, ...]


def families(workers: Sequence[Worker], certificate_expires_s: float | None = None) -> list[Family]:
    """Return the metrics of all workers, and the certificate's.

    Workers are merged, except for metrics that have a worker label.
    """
    merged = np.sum([worker.values for worker in workers], axis=0) if workers else np.zeros(TOTAL)
    found = [_family(metric, workers, merged) for metric in (*COUNTS, *STATES)]
    durations = next(family for family in found if family.metric is REQUEST_DURATION)
    requests = tuple(Sample(each.labels, each.count) for each in durations.samples)
    by_worker = tuple(Sample((worker.name,), _requests(worker)) for worker in workers)
    restarts = tuple(Sample((worker.name,), float(worker.restarts)) for worker in workers)
    return [
        Family(REQUESTS, requests),
        *found,
        Family(WORKER_REQUESTS, by_worker),
        Family(RESTARTS, restarts),
        Family(
            CERTIFICATE_EXPIRES,
            () if certificate_expires_s is None else (Sample((), certificate_expires_s),),
        ),
    ]


def _family(metric: Metric, workers: Sequence[Worker], merged: NDArray[np.float64]) -> Family:
    if not metric.by_worker:
        samples = tuple(_samples(metric, merged, ()))
        if metric is BUILD:
            samples = tuple(Sample(each.labels, 1.0) for each in samples if each.value)
        return Family(metric, samples)
    return Family(
        metric,
        tuple(
            sample
            for worker in workers
            for sample in _samples(metric, worker.values, (worker.name,))
        ),
    )


def _samples(
    metric: Metric, values: NDArray[np.float64], first: tuple[str, ...]
) -> Iterator[Sample]:
    rows = values[span(metric)].reshape(metric.children, width(metric))
    told = rows.any(axis=1) | (rows.size <= _FEW_CELLS)
    if not told.any():
        return
    labels = list(product(*(label.values for label in metric.labels)))
    for child in np.flatnonzero(told).tolist():
        value, *buckets = rows[child].tolist()
        yield Sample((*first, *labels[child]), value, tuple(buckets))


def _requests(worker: Worker) -> float:
    rows = worker.values[span(REQUEST_DURATION)].reshape(-1, width(REQUEST_DURATION))
    return float(rows[:, 1:].sum())
