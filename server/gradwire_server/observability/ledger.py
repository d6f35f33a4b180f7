"""Adds up what the processes of every worker have counted, those that have ended too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.cells import COUNTED, TOTAL, Cells
from gradwire_server.observability.notes import NotedError, newest

# How the process that only watches the workers is labeled.
SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Worker:
    """What is known of one worker at one moment.

    name      as it is labeled
    values    [TOTAL]; counts of all its processes so far, states of those that run
    pids      of the processes that run: none while it is away, two while one takes over
    restarts  processes that took the place of one that had ended
    """

    name: str
    values: NDArray[np.float64]
    pids: tuple[int, ...]
    restarts: int


class Running:
    """One process of a worker.

    cells  what it counts in; None where nobody wants to know
    pid    0 until it is known
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
        """Note that the process has started, and has what it inherits."""
        self.pid = pid
        if self.cells is not None:
            self.cells.close()


class Ledger:
    """The processes of one worker. Thread-safe.

    wanted  whether anybody reads what they count
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
        """Read what a process writes from now on."""
        with self._lock:
            self._running.append(running)

    @contextmanager
    def process(self) -> Generator[Running]:
        """Make cells for a process that starts; after the block it has ended."""
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
        """Count a process that takes the place of one that has ended."""
        with self._lock:
            self._restarts += 1

    def read(self) -> Worker:
        """Return what there is now; counts never fall from one reading to the next."""
        values = np.zeros(TOTAL)
        with self._lock:
            for running in self._running:
                if running.cells is not None:
                    values += running.cells.array
            values[:COUNTED] += self._ended
            pids = tuple(running.pid for running in self._running if running.pid)
            return Worker(self._name, values, pids, self._restarts)

    def errors(self) -> list[NotedError]:
        """Return the latest errors, of processes that have ended too."""
        with self._lock:
            running = [one.cells.notes.errors() for one in self._running if one.cells is not None]
            return newest([*self._errors, *(error for errors in running for error in errors)])

    def told(self) -> dict[str, str]:
        """Return what the latest process tells of itself; empty where there is none."""
        with self._lock:
            running = [one.cells.notes.told() for one in self._running if one.cells is not None]
        return next((told for told in reversed(running) if told), dict[str, str]())


class Ledgers:
    """Those of all workers of a server.

    certificate_expires_s  tells when the server's certificate does, in seconds since 1970; None
                           where there is none
    """

    def __init__(self, workers: int, *, wanted: bool = True) -> None:
        self.all = tuple(Ledger(str(number), wanted=wanted) for number in range(workers))
        self.certificate_expires_s: Callable[[], float | None] = lambda: None

    def read(self) -> list[Worker]:
        """Return what is known of every worker now."""
        return [ledger.read() for ledger in self.all]

    @classmethod
    def of_this_process(cls, cells: Cells) -> Ledgers:
        """Make those of a server that is one process."""
        ledgers = cls(1)
        ledgers.all[0].add(Running(cells, pid=os.getpid()))
        return ledgers
