"""One try of EvaluateStream, on blocking grpc calls in threads.

grpc's own thread asks the sender for messages, one at a time as the network takes them; a second
thread receives; whoever started the try watches both. Clients of asyncio use it too, since a writer
of grpc.aio was seen to lose the error that ends its stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import grpc
from google.protobuf.message import DecodeError

from gradwire import v1
from gradwire._channel import BlockingChannel, Link, from_rpc_error
from gradwire._framing import chunk_frame, read_chunk
from gradwire._pool import Pool
from gradwire._statuses import from_in_band
from gradwire._tracing import Context
from gradwire.chunks import Transfer
from gradwire.errors import CallCancelledError, GradwireError, ServerError, UnavailableError
from gradwire.retries import is_retryable
from gradwire.timing import Metadata


class StreamTry:
    """One try, from start() to the end of the stream.

    ended  set once neither thread touches the caller's arrays any more
    error  what the try failed with; None as long as it runs and where it succeeded. Anything but a
           GradwireError is a fault on this side, such as an input that cannot be read
    opened  whether the server has answered open

    chunk_bytes  most bytes to send in one chunk
    eager        whether to send before the server has answered, where its limits are known
    timeout_s    seconds from start() until the deadline; None where there is none
    metadata     what the call sends besides; None for nothing
    on_end       called in another thread after `ended` is set
    lines        connections of the link to take one of; None for those of streams
    """

    def __init__(
        self,
        link: Link,
        transfer: Transfer,
        *,
        request_id: str,
        chunk_bytes: int,
        eager: bool,
        timeout_s: float | None,
        metadata: Context | None,
        on_end: Callable[[], None] | None,
        lines: Pool[BlockingChannel] | None = None,
    ) -> None:
        self._link = link
        self._lines = lines or link.streams
        self._transfer = transfer
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._metadata = metadata
        self._on_end = on_end
        self._cancelled = self._refused = False
        self.opened = False
        self._sender = _Sender(
            transfer, chunk_bytes=chunk_bytes, limit=link.max_chunk_bytes if eager else None
        )
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._call: grpc.Call | None = None

    def start(self) -> None:
        """Begin the try, once, in any thread; one that was cancelled before ends at once."""
        try:
            self._begin()
        except UnavailableError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - outcome() raises it
            self._refused = True
            self._end(error)

    def _begin(self) -> None:
        if self._cancelled:
            raise CallCancelledError("cancelled before it began", request_id=self._request_id)
        self._seat, line = self._lines.take()
        try:
            self._call = call = line.stream(
                self._sender.messages(), timeout=self._timeout_s, metadata=self._metadata
            )
            if self._cancelled:
                self.hang_up()
            threading.Thread(
                target=self._receive, args=(call,), name="gradwire-receiver", daemon=True
            ).start()
        except Exception as error:
            self.hang_up()
            self._sender.stop()
            self._lines.give_back(self._seat, failed=False)
            if isinstance(error, ValueError):
                # What grpc says of a channel that is closed.
                raise CallCancelledError(str(error), request_id=self._request_id) from error
            raise

    @property
    def sent_too_large(self) -> bool:
        """Whether chunks were sent that turned out to be larger than the server takes."""
        allowed = self._sender.limit
        return allowed is not None and self._sender.largest > allowed

    def cancel(self) -> None:
        """End the try at once; what it stored stays."""
        self._cancelled = True
        self.hang_up()

    def hang_up(self) -> None:
        """End the try at once, as one that failed: the next one takes another server if it can."""
        if self._call is not None:
            self._call.cancel()

    def trailers(self) -> Metadata:
        """Return the trailing metadata of a try that has succeeded."""
        return () if self._call is None else self._call.trailing_metadata() or ()

    def outcome(self) -> GradwireError | None:
        """Return what the try failed with, if anything.

        Raises what is no GradwireError, and that of a try that could not begin.
        """
        if self.error is None or (isinstance(self.error, GradwireError) and not self._refused):
            return self.error
        raise self.error

    def _receive(self, messages: Iterable[bytes]) -> None:
        try:
            for message in messages:
                self._take(message)
            self._transfer.end()
        except grpc.RpcError as error:
            self.error = from_rpc_error(error, request_id=self._request_id)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self.error = error
        self.hang_up()
        self._sender.stop()
        failure = self._sender.error or self.error
        broken = _is_broken(failure)
        self._lines.give_back(self._seat, failed=broken and not self._cancelled)
        self._end(None if self._transfer.complete and broken else failure)

    def _end(self, error: BaseException | None) -> None:
        self.error = error
        self.ended.set()
        if self._on_end is not None:
            self._on_end()

    def _take(self, message: bytes) -> None:
        chunk = read_chunk(message)
        if chunk is not None:
            self._transfer.store(*chunk)
            return
        try:
            response = v1.EvaluateStreamResponse.FromString(message)
        except DecodeError as error:
            raise ServerError(
                f"the server sent {len(message)} bytes that are no message",
                request_id=self._request_id,
            ) from error
        match response.WhichOneof("message"):
            case "opened":
                self.opened = True
                self._transfer.accept(response.opened)
                self._link.max_chunk_bytes = response.opened.max_chunk_bytes
                self._sender.go(response.opened)
            case "chunk":
                self._transfer.store(response.chunk.offset, response.chunk.data)
            case "error":
                raise from_in_band(response.error, request_id=self._request_id)
            case None:
                return


class _Sender:
    """What grpc's thread sends: open, then the input from the byte that the server wants.

    largest  bytes of the largest chunk sent
    limit    most bytes the server takes in one; None as long as that is not known
    error    what reading the input failed with
    """

    def __init__(self, transfer: Transfer, *, chunk_bytes: int, limit: int | None) -> None:
        self._transfer = transfer
        self._chunk_bytes = chunk_bytes
        self._open = transfer.begin()
        self._position = 0
        self._reading = threading.Lock()
        self._stopped = False
        self._go = threading.Event()
        self.largest = 0
        self.limit = limit
        self.error: Exception | None = None
        if limit is not None and transfer.is_whole and not self._open.open.resume_from:
            self._go.set()

    def go(self, opened: v1.Opened) -> None:
        """Heed the server's answer to open; let chunks flow if they do not yet."""
        self.limit = opened.max_chunk_bytes
        if not self._go.is_set():
            self._position = opened.read_from_byte
            self._go.set()

    def stop(self) -> None:
        """Send no more; the input is not read any more once this returns."""
        with self._reading:
            self._stopped = True
        self._go.set()

    def messages(self) -> Iterator[bytes]:
        """Yield the messages, serialized."""
        yield self._open.SerializeToString()
        self._go.wait()
        while (message := self._next_chunk()) is not None:
            yield message
            # Asked for the next one: this one is on its way.
            self._transfer.note_sent(self._position)

    def _next_chunk(self) -> bytes | None:
        source, start = self._transfer.source, self._position
        with self._reading:
            if self._stopped or start == self._transfer.read_before:
                return None
            size = min(self._chunk_bytes, self.limit or self._chunk_bytes)
            stop = min(start + size, self._transfer.read_before)
            try:
                message = chunk_frame(start, source.read(start, stop))
            except Exception as error:  # noqa: BLE001 - the caller's thread raises it
                # The stream half-closes and the server ends it.
                self.error = error
                return None
        self._position = stop
        self.largest = max(self.largest, stop - start)
        return message


def _is_broken(error: BaseException | None) -> bool:
    return isinstance(error, GradwireError) and is_retryable(error, streamed=True)
