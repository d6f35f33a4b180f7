"""Progress of one evaluate(): its tries, deadline, transfers and result.

A client repeats until there is a result: it makes a try, and after a failure asks `recover` how
long to wait before the next one.

Several servers may share an evaluation. Each share is a range of the result's bytes. Servers report
which input bytes a range depends on, so this module knows no operators. A share whose stream breaks
resumes, on another server if necessary. The first non-retryable error cancels all shares.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from functools import partial

from gradwire import ops, tensors, v1
from gradwire._core.options import Options
from gradwire._core.reports import Metadata, Timing, read_timing
from gradwire._core.retries import Tries, is_retryable
from gradwire._wire.requests import (
    PROGRESS_INTERVAL_S,
    ArrayRequest,
    Progress,
    check_timeout,
    prepare,
)
from gradwire.errors import (
    DataLossError,
    DeadlineExceededError,
    EvaluationChangedError,
    GradwireError,
    LimitExceededError,
    ServerError,
)
from gradwire.tensors import Array, Sizes


class Evaluation:
    """One evaluate() from its arguments to its result.

    options      of the client
    request_id   name of the request, the same for every try
    streams      whether the next try is of EvaluateStream; otherwise of Evaluate
    eager        whether a stream may send before the server has answered. Not after a failure: an
                 error is lost more easily while the sender is ahead
    on_trailers  callback for the trailing metadata of a try that succeeds; None without on_timing

    servers  returns the number of servers that can share an evaluation
    """

    def __init__(
        self,
        *,
        op: ops.Operator,
        array: object,
        output_shape: Sizes | None,
        out: Array | None,
        timeout_s: float | None,
        on_progress: Callable[[int, int], object] | None = None,
        on_timing: Callable[[Timing], object] | None = None,
        options: Options,
        servers: Callable[[], int],
    ) -> None:
        self._started_at = time.monotonic()
        self._request = prepare(op, array, output_shape=output_shape, out=out)
        self.request_id = self._request.request_id
        self._timeout_s = check_timeout(timeout_s)
        self.options = options
        self._servers = servers
        self._checksum: int | None = None
        self._splits = options.split
        self._progress = Progress(on_progress)
        self._on_timing = on_timing
        self.on_trailers = None if on_timing is None else self._keep_trailers
        self._tried = 0
        self._trailers: Metadata = ()
        self._tries = options.tries()
        self._shares: Shares | None = None
        self.eager = True
        self._result: Array | None = None
        self.streams = self._request.template.bulk_bytes > options.stream_threshold_bytes

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; at least 0, infinite without one."""
        timeout_s = self._timeout_s
        if timeout_s is None:
            timeout_s = math.inf if self.streams else self.options.timeout_s
        return max(0.0, self._started_at + timeout_s - time.monotonic())

    @property
    def still_s(self) -> float:
        """Seconds until a stream without progress counts as stalled, at least 0."""
        return max(0.0, self.shares.moved_at + self.options.timeout_s - time.monotonic())

    def _begin_try(self) -> float:
        """Count a try; return the seconds until its deadline."""
        left_s = self.left_s
        if not left_s:
            raise self.too_late()
        self._tried += 1
        return left_s

    def unary_request(self) -> bytes:
        """Encode the message for a try of Evaluate."""
        self._begin_try()
        request, self._checksum = self._request.unary_request(checked=self.options.sends_checksums)
        return request

    def _keep_trailers(self, trailers: Metadata) -> None:
        self._trailers = trailers

    def take(self, response: bytes | GradwireError) -> GradwireError | None:
        """Decode the response to Evaluate; return the error of a failed try."""
        if isinstance(response, GradwireError):
            response.checked = self._checksum is not None
            return response
        try:
            self._result = self._request.unary_result(response, after=self._checksum)
        except DataLossError as error:
            return error
        return None

    def begin_shared(self) -> ArrayRequest:
        """Count a try of EvaluateShared; return its request."""
        self._begin_try()
        return self._request

    def end_shared(self, result: Array) -> None:
        """Take the result of EvaluateShared."""
        self._result, self.streams = result, False

    def begin_stream(self) -> float | None:
        """Count a try; return the seconds until its deadline, if any."""
        left_s = self._begin_try()
        return None if math.isinf(left_s) else left_s

    def share_recovery(self) -> Callable[[GradwireError, Transfer], float]:
        """Return a `recover` for one share, with its own retry count."""
        return partial(self._recover_share, self.options.tries())

    def next_look_s(self) -> float:
        """Return the seconds until the next look()."""
        return min(self.still_s, PROGRESS_INTERVAL_S if self._progress.is_wanted else math.inf)

    def look(self) -> None:
        """Report the progress of a stream; raise DeadlineExceededError if it has stalled."""
        shares = self.shares
        self._progress.report(shares.sent, shares.received)
        if not self.still_s:
            raise DeadlineExceededError(
                f"nothing moved for {self.options.timeout_s} s, after {shares.sent} of "
                f"{shares.input_bytes} input bytes and {shares.received} result bytes",
                request_id=self.request_id,
            )

    def recover(self, error: GradwireError) -> float:
        """Return the seconds to wait before the next try.

        Raise the error if there is none.
        """
        # A message over grpc's own limit has no reason of the service.
        too_large = isinstance(error, LimitExceededError) and error.reason in {"USE_STREAM", ""}
        too_large &= not self.streams
        self.streams |= too_large
        if too_large:
            return 0.0
        if error.reason == "LAYOUT_NOT_STREAMABLE":
            request = self._request.reordered()
            if request is not None:
                self._request, self._shares = request, None
                return 0.0
        transfer = None if self._shares is None else self._shares.whole
        if self._shares is not None and transfer is None:
            # Results of the servers differ, as during the rollout of a release.
            if not isinstance(error, EvaluationChangedError):
                raise error
            self._splits, self._shares = False, None
            return 0.0
        self.eager = False
        if error.reason == "INVALID_DATA" and transfer is not None and transfer.too_large:
            # Another server than the one with the known limit has answered; the next try waits for
            # its limit.
            return 0.0
        if isinstance(error, EvaluationChangedError) and transfer is not None:
            transfer.restart()
            return self._pause_s(self._tries, error, transfer)
        return self._recover_share(self._tries, error, transfer)

    def _recover_share(
        self, tries: Tries, error: GradwireError, transfer: Transfer | None
    ) -> float:
        """Return the pause before the next try of a transfer, in seconds.

        Raise the error if there is no further try.
        """
        if self.options.refused_checksum(error):
            return 0.0
        if isinstance(error, DeadlineExceededError) and error.reason != "STALLED":
            raise self.too_late() from error
        if not is_retryable(error, streamed=self.streams):
            raise error
        return self._pause_s(tries, error, transfer)

    def _pause_s(self, tries: Tries, error: GradwireError, transfer: Transfer | None) -> float:
        return tries.pause_s(
            error,
            progressed=transfer is not None and transfer.progressed,
            left_s=min(self.left_s, self.still_s) if self.streams else self.left_s,
        )

    def too_late(self) -> DeadlineExceededError:
        """Return the error of a passed deadline, which names the timeout.

        grpc's own message does not.
        """
        timeout_s = self.options.timeout_s if self._timeout_s is None else self._timeout_s
        message = f"no result within timeout_s, {timeout_s} s"
        if self.streams:
            shares = self.shares
            message += (
                f": {shares.sent} of {shares.input_bytes} input bytes were sent, "
                f"{shares.received} result bytes received"
            )
        return DeadlineExceededError(message, request_id=self.request_id)

    def result(self) -> Array:
        """Return the result, once a try has succeeded."""
        result = self.shares.result if self.streams else self._result
        assert result is not None  # noqa: S101 - a try without a result fails
        self.options.budget.succeed()
        self._progress.finish(self._request.template.input_bytes, result.nbytes)
        if self._on_timing is not None:
            total_s = time.monotonic() - self._started_at
            self._on_timing(read_timing(self._trailers, total_s=total_s, tries=self._tried))
        return result

    @property
    def shares(self) -> Shares:
        """Bytes moved by streams, in one transfer or several."""
        if self._shares is None:
            count = share_count(
                self._request.template.bulk_bytes,
                servers=self._servers() if self._splits else 1,
                threshold_bytes=self.options.split_threshold_bytes,
            )
            if count > 1:
                self._request = in_order(self._request)
            self._shares = Shares(self._request, count, chunk_bytes=self.options.chunk_bytes)
        return self._shares


def share_count(bulk_bytes: int, *, servers: int, threshold_bytes: int) -> int:
    """Return the number of shares; 1 for a single server.

    bulk_bytes       of the input or of the result: the larger number
    threshold_bytes  largest evaluation of a single server; a share has at least half of it
    """
    return max(1, min(servers, math.ceil(bulk_bytes / max(1, threshold_bytes))))


def in_order(request: ArrayRequest) -> ArrayRequest:
    """Return the request with the input's axes nesting as the result's.

    Otherwise each server needs the whole input. A broadcast input is returned unchanged: reordering
    would make it larger.
    """
    if request.template.input_bytes < request.source.nbytes:
        return request
    return request.reordered() or request


class ResultBuffer:
    """Buffer of a result, filled by one transfer or by several shares.

    array   None before a server has described the result
    view    its bytes
    digest  of the evaluation whose bytes it accepts; empty for any
    """

    def __init__(self, request: ArrayRequest) -> None:
        self._request = request
        self._lock = threading.Lock()
        self.array: Array | None = None
        self.view: tensors.WireView | None = None
        self.digest = ""

    def settle(self, opened: v1.Opened) -> None:
        """Take the server's description of the result."""
        with self._lock:
            if self.digest and opened.evaluation_digest != self.digest:
                raise EvaluationChangedError(
                    f"the server computes {opened.evaluation_digest}; {self.digest} was asked for"
                )
            if self.view is None:
                self.array = self._request.result_as(opened.output)
                self.view = tensors.WireView(self.array, opened.output)
            self.digest = opened.evaluation_digest


class Transfer:
    """Progress of an input to the server and of its result.

    A sending and a receiving thread use it at once, and a third one reads it. Each attribute is
    written by one thread.

    chunk_bytes  most bytes of one chunk
    first        byte of the result with which it begins
    sent         bytes of the input that the current try has handed to grpc
    opened       whether the server has answered the current try
    read_before  end of the input bytes that the server wants
    too_large    whether the current try used larger chunks than the server accepts
    received     end of the consecutive bytes of the result that are stored
    moved_at     when bytes last moved, on the monotonic clock; infinite while it need not progress

    part  bytes of the result to transfer; empty for all
    """

    def __init__(
        self,
        request: ArrayRequest,
        buffer: ResultBuffer,
        *,
        chunk_bytes: int,
        part: range = range(0),
    ) -> None:
        self._request = request
        self.request_id = request.request_id
        self.chunk_bytes = chunk_bytes
        self.first, self._stop = part.start, part.stop
        self._buffer = buffer
        self._read_from: int | None = None
        self.source = tensors.WireView(request.source, request.template.input)
        self.read_before = self.source.nbytes
        self._farthest = self._received_before = self.received = self.first
        self.sent = 0
        self.opened = self.too_large = False
        self.moved_at = time.monotonic()

    @property
    def complete(self) -> bool:
        """Whether all its bytes are stored."""
        view = self._buffer.view
        return view is not None and self.received == (self._stop or view.nbytes)

    @property
    def progressed(self) -> bool:
        """Whether the current try received result bytes beyond all earlier tries."""
        return self._farthest > self._received_before

    def begin(self) -> v1.EvaluateStreamRequest:
        """Start a try; return the message that opens it."""
        self.sent = 0
        self.opened = self.too_large = False
        self._received_before = self._farthest
        template = self._request.template
        return v1.EvaluateStreamRequest(
            open=v1.Open(
                request_id=self.request_id,
                operator=template.operator,
                input=template.input,
                output=template.output,
                resume_from=self.received,
                evaluation_digest=self._buffer.digest,
                stop_before=self._stop,
                max_chunk_bytes=self.chunk_bytes,
            )
        )

    def restart(self) -> None:
        """Discard the result bytes: they belong to another evaluation."""
        self._buffer.digest = ""
        self.received = self.first

    def accept(self, opened: v1.Opened) -> None:
        """Take the server's answer to open."""
        self._buffer.settle(opened)
        total, first = self.source.nbytes, opened.read_from_byte
        stop = opened.read_before_byte if self._stop else total
        if not 0 <= first <= stop <= total or opened.max_chunk_bytes < 1:
            raise self._nonsense(
                f"wants chunks of {opened.max_chunk_bytes} bytes from byte {first} to byte {stop} "
                f"of {total}"
            )
        self.read_before, self.opened = stop, True
        if self._stop and self._read_from is None:
            self._read_from = first
        self.moved_at = time.monotonic()

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Take a chunk of the result."""
        view = self._buffer.view
        if view is None or not self.opened:
            raise self._nonsense("sent a chunk before opened")
        stop = self._stop or view.nbytes
        if offset != self.received or not 1 <= len(data) <= stop - offset:
            raise self._nonsense(
                f"sent {len(data)} bytes at {offset} of a result that ends at byte {stop}; "
                f"{self.received} comes next"
            )
        view.write(offset, data)
        self.received = offset + len(data)
        self._farthest = max(self._farthest, self.received)
        self.moved_at = time.monotonic()

    def note_sent(self, stop: int) -> None:
        """Note that grpc has taken the input up to this byte."""
        self.sent = stop - (self._read_from or 0)
        self.moved_at = time.monotonic()

    def end(self) -> None:
        """Take the end of a stream without an error."""
        if not self.complete:
            raise self._nonsense(f"ended the stream after {self.received} bytes; more are due")

    def _nonsense(self, what: str) -> ServerError:
        return ServerError(f"the server {what}")


class Shares:
    """Transfers of the shares of one evaluation, or of the whole.

    count        number of transfers at once
    input_bytes  of the whole input
    """

    def __init__(self, request: ArrayRequest, count: int, *, chunk_bytes: int) -> None:
        self._request = request
        self.count = count
        self._buffer = ResultBuffer(request)
        self._transfer = partial(Transfer, request, self._buffer, chunk_bytes=chunk_bytes)
        self._first = self._transfer(part=range(0 if count == 1 else 1))
        self._parts: tuple[Transfer, ...] = (self._first,)
        self.input_bytes = request.template.input_bytes

    @property
    def whole(self) -> Transfer | None:
        """The only transfer; None if several share the evaluation."""
        return self._first if self.count == 1 else None

    @property
    def result(self) -> Array | None:
        """The result's array; None before a server has described it."""
        return self._buffer.array

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
        """Time of the last progress of the share that has waited longest."""
        parts = self._parts
        last = max(part.moved_at for part in parts)
        return min((part.moved_at for part in parts if not part.complete), default=last)

    def note_begin(self) -> None:
        """Count the time without progress from now, before any share begins."""
        self._first.moved_at = time.monotonic()

    def ask(self) -> Transfer | None:
        """Return a transfer that asks for the result's size, if unknown."""
        return self._first if self._result_bytes() is None else None

    def cut(self) -> tuple[Transfer, ...]:
        """Cut the result into shares, at whole elements; return their transfers."""
        total = self._result_bytes()
        assert total is not None  # noqa: S101 - ask() has asked for it
        size = self._request.source.dtype.itemsize
        elements = total // size
        ends = sorted({size * (elements * part // self.count) for part in range(self.count + 1)})
        self._parts = tuple(
            self._transfer(part=range(first, stop)) for first, stop in itertools.pairwise(ends)
        )
        return self._parts

    def _result_bytes(self) -> int | None:
        if self._buffer.view is not None:
            return self._buffer.view.nbytes
        return self._request.template.output_bytes
