"""One evaluation by several servers at once, each of which gives a range of the result's bytes.

The servers say which input bytes a range depends on, so that nothing of operators is known here. A
share whose stream breaks goes on where it stopped, on another server if need be. One that finds no
server with room for it waits until another share has ended. The first error that stays ends them
all.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from gradwire._job import Job
from gradwire._shifts import Shifts
from gradwire._streams import StreamTry
from gradwire.chunks import Landing, Transfer
from gradwire.errors import EvaluationChangedError, GradwireError, UnavailableError
from gradwire.retries import is_retryable
from gradwire.timing import Metadata


def share_count(bulk_bytes: int, *, servers: int, threshold_bytes: int) -> int:
    """Return in how many shares to cut an evaluation; 1 where one server is to do it alone.

    bulk_bytes       of the input or of the result, whichever is larger
    threshold_bytes  most that one server does alone; a share has half of it or more
    """
    if bulk_bytes <= threshold_bytes:
        return 1
    return min(servers, math.ceil(bulk_bytes / max(1, threshold_bytes)))


def needs_one_server(error: GradwireError) -> bool:
    """Whether servers cannot share an evaluation that one of them could well do.

    They compute other bits, as while a new release is rolled out, or are older than shares.
    """
    return isinstance(error, EvaluationChangedError) or error.reason == "UNKNOWN_FIELD"


def in_order(job: Job) -> Job:
    """Return the job with its input's axes nesting as the result's do.

    Otherwise every server would have to read all of it. One with broadcast axes stays as it is: it
    is smaller than what it would become.
    """
    if job.input_bytes < job.source.nbytes:
        return job
    return job.reordered() or job


class Shares:
    """What the streams of one evaluation have moved.

    input_bytes  of all the input
    """

    def __init__(self, job: Job, count: int, *, chunk_bytes: int) -> None:
        self._job = job
        self._count = count
        self._chunk_bytes = chunk_bytes
        self._landing = Landing(job)
        self._first = self._transfer(range(1))
        self._parts: tuple[Transfer, ...] = (self._first,)
        self.input_bytes = job.input_bytes

    @property
    def result(self) -> NDArray[Any] | None:
        """The array of the result; None as long as no server has described it."""
        return self._landing.array

    @property
    def sent(self) -> int:
        """Bytes of the input that are handed to grpc; what two shares need counts once."""
        return min(self.input_bytes, sum(part.sent for part in self._parts))

    @property
    def received(self) -> int:
        """Bytes of the result that are stored."""
        return sum(part.received - part.first for part in self._parts)

    @property
    def moved_at(self) -> float:
        """When bytes last moved of the share that has waited longest, on the monotonic clock.

        One that waits for another to end is not meant.
        """
        parts = self._parts
        waiting = [part.moved_at for part in parts if not (part.complete or part.rests)]
        return min(waiting) if waiting else max(part.moved_at for part in parts)

    def ask(self) -> Transfer | None:
        """Return what to transfer before cut(); None where the result's size is known already."""
        return self._first if self._result_bytes() is None else None

    def cut(self) -> tuple[Transfer, ...]:
        """Cut the result into shares, at whole elements; return what brings each."""
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


class SplitTry:
    """The streams of one evaluation, from the first open to the end of the last.

    ended  set once no thread touches the caller's arrays any more

    start    makes a stream for a share
    recover  returns the seconds to wait before the next try of a share, or raises its error. Each
             share calls one of its own
    patience_s  how long a server may take to answer before another one is asked
    rests    whether a share whose tries are over may wait for another one to end
    on_end   called in another thread after `ended` is set
    """

    def __init__(
        self,
        shares: Shares,
        *,
        start: Callable[[Transfer], StreamTry],
        recover: Callable[[], Callable[[GradwireError, Transfer], float]],
        patience_s: float,
        rests: bool,
        on_end: Callable[[], None] | None,
    ) -> None:
        self._shares = shares
        self._start = start
        self._recover = recover
        self._patience_s = patience_s
        self._rests = rests
        self._on_end = on_end
        self._lock = threading.Lock()
        self._streams: list[StreamTry] = []
        self._stopping = threading.Event()
        self._shifts = Shifts(1)
        self._error: BaseException | None = None
        self._trailers: Metadata = ()
        self.ended = threading.Event()
        self.sent_too_large = False

    def start(self) -> None:
        """Begin, once, in any thread; what was cancelled before ends at once."""
        try:
            threading.Thread(target=self._run, name="gradwire-split", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - outcome() raises it
            self._fail(error)
            self._end_all()

    def cancel(self) -> None:
        """End all streams at once; what they stored stays."""
        with self._lock:
            self._stopping.set()
            self._shifts.stop()
            streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()

    def trailers(self) -> Metadata:
        """Return the trailing metadata of the stream that ended last."""
        return self._trailers

    def outcome(self) -> GradwireError | None:
        """Return what the streams failed with, if anything; raise what is no GradwireError."""
        if self._error is None or isinstance(self._error, GradwireError):
            return self._error
        raise self._error

    def _run(self) -> None:
        try:
            question = self._shares.ask()
            if question is not None:
                self._bring(question)
            if not self._stopping.is_set():
                self._bring_all(self._shares.cut())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)
        self._end_all()

    def _end_all(self) -> None:
        self.ended.set()
        if self._on_end is not None:
            self._on_end()

    def _bring_all(self, transfers: tuple[Transfer, ...]) -> None:
        with self._lock:
            self._shifts = Shifts(len(transfers))
            if self._stopping.is_set():
                return
        started: list[threading.Thread] = []
        try:
            for one in transfers:
                thread = threading.Thread(
                    target=self._bring, args=(one,), name="gradwire-share", daemon=True
                )
                thread.start()
                started.append(thread)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)
        for thread in started:
            thread.join()

    def _bring(self, transfer: Transfer) -> None:
        """Bring one share, trying again where that may help."""
        recover, ended = self._recover(), self._shifts.ended
        try:
            while (stream := self._begin(transfer)) is not None:
                error = self._outcome(stream, transfer)
                if error is None:
                    self._trailers = stream.trailers()
                    self._shifts.end()
                    return
                self._end(stream)
                if self._stopping.is_set():
                    return
                try:
                    pause_s = recover(error, transfer)
                except GradwireError as last:
                    if not self._rest(transfer, last, since=ended):
                        raise
                    recover, ended = self._recover(), self._shifts.ended
                else:
                    self._stopping.wait(pause_s)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)

    def _outcome(self, stream: StreamTry, transfer: Transfer) -> GradwireError | None:
        """Wait for the end of a stream, which comes soon where no server answers."""
        silent = False
        if not stream.ended.wait(self._patience_s):
            silent = not stream.opened
            if silent:
                stream.hang_up()
            stream.ended.wait()
        error = stream.outcome()
        if silent and error is not None:
            why = f"no answer from a server within {self._patience_s} s"
            return UnavailableError(why, request_id=error.request_id)
        if error is None and not transfer.complete:
            raise AssertionError("a share has ended without all of its bytes")
        return error

    def _rest(self, transfer: Transfer, error: GradwireError, *, since: int) -> bool:
        """Wait until another share has ended; return False where that would not help."""
        if not self._rests or not is_retryable(error, streamed=True):
            return False
        with transfer.resting():
            return self._shifts.rest(since)

    def _begin(self, transfer: Transfer) -> StreamTry | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            stream = self._start(transfer)
            stream.start()
            self._streams.append(stream)
            return stream

    def _end(self, stream: StreamTry) -> None:
        with self._lock:
            self._streams.remove(stream)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None and not self._stopping.is_set():
                self._error = error
        self.cancel()
