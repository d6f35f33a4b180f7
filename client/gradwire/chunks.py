"""Bytes moved by streams, kept across tries so that they resume."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from numpy.typing import NDArray

from gradwire import tensors, v1
from gradwire._wire.requests import ArrayRequest
from gradwire.errors import EvaluationChangedError, ServerError


class ResultBuffer:
    """Buffer of a result, filled by one transfer or by several shares.

    array   None before a server has described the result
    view    its bytes
    digest  of the evaluation whose bytes it accepts; empty for any
    """

    def __init__(self, request: ArrayRequest) -> None:
        self._request = request
        self._lock = threading.Lock()
        self.array: NDArray[Any] | None = None
        self.view: tensors.WireView | None = None
        self.digest = ""

    def settle(self, opened: v1.Opened) -> None:
        """Take the server's description of the result."""
        with self._lock:
            if self.digest and opened.evaluation_digest != self.digest:
                raise EvaluationChangedError(
                    f"the server computes {opened.evaluation_digest}; {self.digest} was asked for",
                    request_id=self._request.request_id,
                )
            if self.view is None:
                self.array = self._request.result_as(opened.output)
                self.view = tensors.WireView(self.array, opened.output)
            self.digest = opened.evaluation_digest


class Transfer:
    """Progress of an input to the server and of its result.

    A sending and a receiving thread use it at once, and a third one reads it. Each attribute is
    written by one thread.

    first        byte of the result with which it begins
    sent         bytes of the input that the current try has handed to grpc
    read_before  end of the input bytes that the server wants
    received     end of the consecutive bytes of the result that are stored
    moved_at     when bytes last moved, on the monotonic clock; infinite while it need not progress

    part     bytes of the result to transfer; None for all
    buffer   buffer for them; None for one of its own
    """

    def __init__(
        self,
        request: ArrayRequest,
        *,
        chunk_bytes: int,
        part: range | None = None,
        buffer: ResultBuffer | None = None,
    ) -> None:
        self._request = request
        self._chunk_bytes = chunk_bytes
        self._part = part
        self._buffer = buffer or ResultBuffer(request)
        self._read_from: int | None = None
        self.source = tensors.WireView(request.source, request.input)
        self.read_before = self.source.nbytes
        self.first = 0 if part is None else part.start
        self._farthest = self._received_before = self.received = self.first
        self.sent = 0
        self.moved_at = time.monotonic()

    @property
    def result(self) -> NDArray[Any] | None:
        """Array of the result; None until a server has described it."""
        return self._buffer.array

    @property
    def input_bytes(self) -> int:
        """Bytes of the whole input."""
        return self.source.nbytes

    @property
    def is_whole(self) -> bool:
        """Whether it transfers the whole result."""
        return self._part is None

    @property
    def complete(self) -> bool:
        """Whether all its bytes are stored."""
        view = self._buffer.view
        return view is not None and self.received == self._stop(view)

    def _stop(self, view: tensors.WireView) -> int:
        return view.nbytes if self._part is None else self._part.stop

    @property
    def progressed(self) -> bool:
        """Whether the current try received result bytes beyond all earlier tries."""
        return self._farthest > self._received_before

    def begin(self) -> v1.EvaluateStreamRequest:
        """Start a try; return the message that opens it."""
        self.sent = 0
        self._received_before = self._farthest
        return v1.EvaluateStreamRequest(
            open=v1.Open(
                request_id=self._request.request_id,
                operator=self._request.operator,
                input=self._request.input,
                output=self._request.output,
                resume_from=self.received,
                evaluation_digest=self._buffer.digest,
                stop_before=0 if self._part is None else self._part.stop,
                max_chunk_bytes=self._chunk_bytes,
            )
        )

    def wait(self, *, waits: bool) -> None:
        """Note the beginning of a wait for its turn, or the end."""
        self.moved_at = math.inf if waits else time.monotonic()

    def restart(self) -> None:
        """Discard the result bytes: they belong to another evaluation."""
        self._buffer.digest = ""
        self.received = self.first

    def accept(self, opened: v1.Opened) -> None:
        """Take the server's answer to open."""
        self._buffer.settle(opened)
        total, first = self.source.nbytes, opened.read_from_byte
        stop = total if self._part is None else opened.read_before_byte
        if not 0 <= first <= stop <= total or opened.max_chunk_bytes < 1:
            raise self._nonsense(
                f"wants chunks of {opened.max_chunk_bytes} bytes from byte {first} to byte {stop} "
                f"of {total}"
            )
        self.read_before = stop
        if self._part is not None and self._read_from is None:
            self._read_from = first
        self.moved_at = time.monotonic()

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Take a chunk of the result."""
        view = self._buffer.view
        if view is None:
            raise self._nonsense("sent a chunk before opened")
        stop = self._stop(view)
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
        return ServerError(f"the server {what}", request_id=self._request.request_id)
