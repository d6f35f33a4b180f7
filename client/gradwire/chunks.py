"""What a stream has moved: kept from try to try, so that a broken one goes on where it stopped."""

from __future__ import annotations

import time
from typing import Any

from numpy.typing import NDArray

from gradwire import tensors, v1
from gradwire._job import Job
from gradwire.errors import EvaluationChangedError, ServerError


class Transfer:
    """The input on its way up and the result on its way down.

    A sending and a receiving thread work on it at once, a third one looks on. Each attribute is
    written by one of them.

    sent      bytes of the input that the current try has handed to grpc
    received  consecutive bytes of the result that are stored
    moved_at  when bytes last moved, on the monotonic clock
    """

    def __init__(self, job: Job, *, chunk_bytes: int) -> None:
        self._job = job
        self._chunk_bytes = chunk_bytes
        self._view: tensors.WireView | None = None
        self._digest = ""
        self._farthest = 0
        self._received_before = 0
        self.source = tensors.WireView(job.source, job.input)
        self.result: NDArray[Any] | None = None
        self.sent = 0
        self.received = 0
        self.moved_at = time.monotonic()

    @property
    def complete(self) -> bool:
        """Whether the result is."""
        return self._view is not None and self.received == self._view.nbytes

    @property
    def progressed(self) -> bool:
        """Whether the current try brought result bytes that no try before it had."""
        return self._farthest > self._received_before

    def begin(self) -> v1.EvaluateStreamRequest:
        """Start a try; return the message that opens it."""
        self.sent = 0
        self._received_before = self._farthest
        return v1.EvaluateStreamRequest(
            open=v1.Open(
                request_id=self._job.request_id,
                operator=self._job.operator,
                input=self._job.input,
                output=self._job.output,
                resume_from=self.received,
                evaluation_digest=self._digest,
                max_chunk_bytes=self._chunk_bytes,
            )
        )

    def restart(self) -> None:
        """Forget the result bytes: those of another evaluation do not fit them."""
        self._digest = ""
        self.received = 0

    def accept(self, opened: v1.Opened) -> None:
        """Take the server's answer to open."""
        if self._digest and opened.evaluation_digest != self._digest:
            raise EvaluationChangedError(
                f"the server resumed {opened.evaluation_digest}; {self._digest} was asked for",
                request_id=self._job.request_id,
            )
        if not 0 <= opened.read_from_byte <= self.source.nbytes or opened.max_chunk_bytes < 1:
            raise self._nonsense(
                f"wants chunks of {opened.max_chunk_bytes} bytes from byte {opened.read_from_byte} "
                f"of {self.source.nbytes}"
            )
        if self._view is None:
            self.result = self._job.result_as(opened.output)
            self._view = tensors.WireView(self.result, opened.output)
        self._digest = opened.evaluation_digest
        self.moved_at = time.monotonic()

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Take a chunk of the result."""
        view = self._view
        if view is None:
            raise self._nonsense("sent a chunk before opened")
        if offset != self.received or not 1 <= len(data) <= view.nbytes - offset:
            raise self._nonsense(
                f"sent {len(data)} bytes at {offset} of a result of {view.nbytes} bytes; "
                f"{self.received} comes next"
            )
        view.write(offset, data)
        self.received = offset + len(data)
        self._farthest = max(self._farthest, self.received)
        self.moved_at = time.monotonic()

    def note_sent(self, stop: int) -> None:
        """Note that grpc has taken the input up to this byte."""
        self.sent = stop
        self.moved_at = time.monotonic()

    def end(self) -> None:
        """Take the end of a stream without an error."""
        if not self.complete:
            raise self._nonsense(f"ended the stream after {self.received} bytes; more are due")

    def _nonsense(self, what: str) -> ServerError:
        return ServerError(f"the server {what}", request_id=self._job.request_id)
