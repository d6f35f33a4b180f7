"""Shares of one evaluation, computed by several servers at once.

Each share is a range of the result's bytes. Servers report which input bytes a range depends on, so
this module knows no operators. A share whose stream breaks resumes, on another server if necessary.
A share that no server has room for waits until another share has ended. The first non-retryable
error cancels all shares.
"""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

from numpy.typing import NDArray

from gradwire._wire.requests import ArrayRequest
from gradwire.chunks import ResultBuffer, Transfer
from gradwire.errors import EvaluationChangedError, GradwireError


def share_count(bulk_bytes: int, *, servers: int, threshold_bytes: int) -> int:
    """Return the number of shares of an evaluation; 1 for a single server.

    bulk_bytes       of the input or of the result, whichever is larger
    threshold_bytes  largest evaluation of a single server; a share has at least half of it
    """
    if bulk_bytes <= threshold_bytes:
        return 1
    return min(servers, math.ceil(bulk_bytes / max(1, threshold_bytes)))


def needs_one_server(error: GradwireError) -> bool:
    """Whether the servers cannot share an evaluation that one of them can compute.

    Their results differ, as during the rollout of a release, or one does not support shares.
    """
    return isinstance(error, EvaluationChangedError) or error.reason == "UNKNOWN_FIELD"


def in_order(job: ArrayRequest) -> ArrayRequest:
    """Return the request with the input's axes nesting as the result's.

    Otherwise each server needs the whole input. A broadcast input is returned unchanged: reordering
    would make it larger.
    """
    if job.input_bytes < job.source.nbytes:
        return job
    return job.reordered() or job


class Shares:
    """Transfers of the shares of one evaluation.

    input_bytes  of the whole input
    """

    def __init__(self, job: ArrayRequest, count: int, *, chunk_bytes: int) -> None:
        self._job = job
        self._count = count
        self._chunk_bytes = chunk_bytes
        self._landing = ResultBuffer(job)
        self._first = self._transfer(range(1))
        self._parts: tuple[Transfer, ...] = (self._first,)
        self.input_bytes = job.input_bytes

    @property
    def result(self) -> NDArray[Any] | None:
        """The result's array; None before a server has described it."""
        return self._landing.array

    @property
    def sent(self) -> int:
        """Input bytes handed to grpc; at most input_bytes, though shares may overlap."""
        return min(self.input_bytes, sum(part.sent for part in self._parts))

    @property
    def received(self) -> int:
        """Result bytes stored."""
        return sum(part.received - part.first for part in self._parts)

    @property
    def moved_at(self) -> float:
        """Time of the last progress of the share that has waited longest.

        Shares that wait for another one to end are left out.
        """
        parts = self._parts
        waiting = [part.moved_at for part in parts if not (part.complete or part.rests)]
        return min(waiting) if waiting else max(part.moved_at for part in parts)

    def ask(self) -> Transfer | None:
        """Return a transfer that asks for the result's size; None if it is known."""
        return self._first if self._result_bytes() is None else None

    def cut(self) -> tuple[Transfer, ...]:
        """Cut the result into shares, at whole elements; return their transfers."""
        total = self._result_bytes()
        if total is None:
            raise AssertionError("a result of unknown size was to be cut")
        size = self._job.source.dtype.itemsize
        elements = total // size
        ends = sorted({size * (elements * part // self._count) for part in range(self._count + 1)})
        self._parts = tuple(
            self._transfer(range(first, stop)) for first, stop in itertools.pairwise(ends)
        )
        return self._parts

    def _result_bytes(self) -> int | None:
        if self._landing.view is not None:
            return self._landing.view.nbytes
        return self._job.output_bytes

    def _transfer(self, part: range) -> Transfer:
        return Transfer(self._job, chunk_bytes=self._chunk_bytes, part=part, landing=self._landing)


class ShareCoordinator:
    """Lets a share that failed wait until another share has ended.

    The resources of the other one, such as the only stream that a server has room for, are then
    free. The last running share has none to wait for.

    workers  number of shares
    resting  number of waiting shares
    ended    number of completed shares
    """

    def __init__(self, workers: int) -> None:
        self._working = workers
        self.resting = self.ended = 0
        self._stopped = False
        self._changed = threading.Condition()

    def end(self) -> None:
        """Note that a share has completed; wake the waiting ones."""
        with self._changed:
            self.ended += 1
            self._working += self.resting - 1
            self.resting = 0
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake the waiting shares; let none wait any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def rest(self, since: int) -> bool:
        """Wait until more shares have ended than `since`; return False if no other one is running.

        Returns True at once after stop().
        """
        with self._changed:
            if self._stopped or self.ended > since:
                return True
            if self._working == 1:
                return False
            self._working -= 1
            self.resting += 1
            self._changed.wait_for(lambda: self._stopped or self.ended > since)
            return True
