"""One stream of EvaluateMany, on a blocking grpc call; clients of asyncio use it too.

grpc's own thread sends. An asyncio call would lose the error that ends its stream when it comes
while a request is being written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, cast

import grpc

from gradwire._channel import BlockingChannel, Link, from_rpc_error
from gradwire._pool import Seat
from gradwire._tracing import call_span
from gradwire.errors import CallCancelledError, GradwireError, ServerError
from gradwire.retries import is_retryable

_METHOD = "/gradwire.v1.GradientService/EvaluateMany"

# How long a server may take to end a stream that has nothing left.
_CLOSING_S = 1.0


class ManyStream:
    """Sends requests and receives answers, both serialized, from start() on."""

    def __init__(self, link: Link, requests: Iterable[bytes]) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        for request in requests:
            self._requests.put(request)
        self._pool, self._failed, self._ended = link.unary, False, False
        self._ending = threading.Lock()  # another thread may cancel
        self._cancelled = False
        self._seat: Seat[BlockingChannel] | None = None
        self._call: Any = None
        self._tracing = contextlib.ExitStack()
        self._span = self._tracing.enter_context(
            call_span("EvaluateMany", target=link.target, bearer=link.bearer)
        )
        self._received: SimpleQueue[bytes | GradwireError] | None = None

    def start(self) -> None:
        """Begin the stream, once, in any thread.

        Raises CallCancelledError where it was cancelled before or the channel is closed,
        UnavailableError where no server is known.
        """
        try:
            if self._cancelled:
                raise CallCancelledError("cancelled before it began")
            self._seat, line = self._pool.take()
            stream: grpc.StreamStreamMultiCallable[bytes, bytes]
            stream = line.channel.stream_stream(_METHOD)
            self._call = stream(iter(self._requests.get, None), metadata=self._span.metadata)
        except GradwireError as error:
            self._refuse(error)
            raise
        except ValueError as error:
            # What grpc says of a channel that is closed.
            closed = CallCancelledError(str(error))
            self._refuse(closed)
            raise closed from error
        if self._cancelled:
            self.cancel()

    def send(self, request: bytes) -> None:
        """Send a request, without waiting until it is on its way."""
        self._requests.put(request)

    def receive_ahead(self) -> None:
        """Receive in a thread of its own from now on; receive() then takes what that has."""
        if self._received is None:
            self._received = SimpleQueue()
            args = (self._received,)
            threading.Thread(
                target=self._receive_all, args=args, name="gradwire-receiver", daemon=True
            ).start()

    @property
    def has_received(self) -> bool:
        """Whether receive() need not wait; never but after receive_ahead()."""
        return self._received is not None and not self._received.empty()

    def receive(self) -> bytes:
        """Wait for the next answer; raise GradwireError where none comes."""
        if self._received is None:
            return self._receive()
        came = self._received.get()
        if isinstance(came, GradwireError):
            raise came
        return came

    def _receive_all(self, received: SimpleQueue[bytes | GradwireError]) -> None:
        with contextlib.suppress(GradwireError):
            while True:
                try:
                    received.put(self._receive())
                except GradwireError as error:
                    received.put(error)
                    raise

    def _receive(self) -> bytes:
        try:
            message: bytes = next(self._call)
        except StopIteration:
            raise ServerError("the server ended the stream before its last answer") from None
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            self._failed = is_retryable(failure, streamed=True)
            raise failure from error
        return message

    def finish(self) -> None:
        """End the stream after the last answer."""
        ended = threading.Event()
        self._requests.put(None)
        if self._call is not None and self._call.add_callback(ended.set):
            ended.wait(_CLOSING_S)
        self.cancel()

    def cancel(self) -> None:
        """End the stream at once; receive() then raises, if another thread waits in it."""
        self._cancelled = True
        self._requests.put(None)
        if self._call is None:
            return
        self._call.cancel()
        ok = self._call.code() is grpc.StatusCode.OK
        self._give_back(None if ok else from_rpc_error(cast("grpc.RpcError", self._call)))

    def _refuse(self, error: GradwireError) -> None:
        self._requests.put(None)
        self._give_back(error)

    def _give_back(self, error: GradwireError | None) -> None:
        with self._ending:
            ended, self._ended = self._ended, True
        if not ended:
            if self._seat is not None:
                self._pool.give_back(self._seat, failed=self._failed)
            self._span.note(error)
            self._tracing.close()
