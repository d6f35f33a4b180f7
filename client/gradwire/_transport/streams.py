"""Evaluations by streams, on blocking grpc calls, for both clients.

grpc's own thread asks the sender for messages, one at a time as the network takes them; a second
thread receives; the thread or task that runs the evaluation watches both. AsyncClient uses these
calls too: a writer of grpc.aio was seen to lose the error that ends its stream.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from gradwire import v1
from gradwire._core.evaluation import Evaluation, Shares, Transfer
from gradwire._core.options import Sent
from gradwire._core.retries import is_retryable
from gradwire._transport.channels import (
    ClientChannels,
    Pool,
    from_rpc_error,
    next_pause_s,
    start_thread,
)
from gradwire._transport.tracing import call_span
from gradwire._transport.unary import Runtime
from gradwire._wire import checksums
from gradwire._wire.framing import chunk_frame, parsed, read_chunk, verify_sealed
from gradwire._wire.statuses import from_in_band
from gradwire.errors import CallCancelledError, DataLossError, GradwireError, UnavailableError


@dataclass(eq=False)
class StreamTry:
    """One try, from start() to the end of the stream.

    ended   event, set once no thread accesses the caller's arrays any more
    error   of a failed try; None while it runs and after success. Anything but a GradwireError is
            a local fault, such as an unreadable input

    pool      gives the connection
    eager     whether to send before the server has answered, where its limits are known
    metadata  of the call; None for none
    """

    channels: ClientChannels
    evaluation: Evaluation
    transfer: Transfer
    pool: Pool
    eager: bool
    metadata: Sent | None
    ended: threading.Event
    error: BaseException | None = field(default=None, init=False)
    _cancelled: bool = field(default=False, init=False)
    _call: grpc.Call | None = field(default=None, init=False)
    # Checksum that those of result chunks continue.
    _opened_checksum: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._timeout_s = self.evaluation.begin_stream()
        limit = self.channels.max_chunk_bytes if self.eager else None
        checked = self.channels.options.sends_checksums
        self._sender = _Sender(self.transfer, limit=limit, checked=checked)

    def start(self) -> None:
        """Begin the try, once, in any thread.

        A cancelled try ends at once.
        """
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._end(error)

    def _begin(self) -> None:
        if self._cancelled:
            raise CallCancelledError("cancelled before it began")
        self._taken = self.pool.take()
        try:
            self._call = call = self._taken.begin_stream(
                "EvaluateStream",
                self._sender.messages(),
                timeout=self._timeout_s,
                metadata=self.metadata,
            )
            if self._cancelled:
                self.hang_up()
            start_thread("receiver", self._receive, call)
        except Exception:
            self.hang_up()
            self._sender.stop()
            self.pool.give_back(self._taken, failed=False)
            raise

    def cancel(self) -> None:
        """Cancel the try; stored bytes stay."""
        self._cancelled = True
        self.hang_up()

    def hang_up(self) -> None:
        """Cancel the try as failed; the next prefers another server."""
        if self._call is not None:
            self._call.cancel()

    def _receive(self, messages: Any) -> None:
        try:
            for message in messages:
                self._take(message)
                del message  # as large as a chunk, and the next one is built meanwhile
            self.transfer.end()
        except grpc.RpcError as error:
            self.error = from_rpc_error(error)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self.error = error
        self.hang_up()
        self._sender.stop()
        failure = self._sender.error or self.error
        broken = isinstance(failure, GradwireError) and is_retryable(failure, streamed=True)
        self.pool.give_back(self._taken, failed=broken and not self._cancelled)
        if self.transfer.complete and broken:
            failure = None
        if failure is None and self.evaluation.on_trailers is not None:
            self.evaluation.on_trailers(messages.trailing_metadata() or ())
        self._end(failure)

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, GradwireError):
            error.checked = self._sender.checksum is not None
            error.request_id = error.request_id or self.transfer.request_id
        self.error = error
        self.ended.set()

    def _take(self, message: bytes) -> None:
        chunk = read_chunk(message, self._opened_checksum)
        if chunk is not None:
            self._store(*chunk)
            return
        response = parsed(v1.EvaluateStreamResponse, message)
        match response.WhichOneof("message"):
            case "opened":
                opened = response.opened
                self._verify(opened, message)
                self.transfer.accept(opened)
                self.channels.max_chunk_bytes = opened.max_chunk_bytes
                self._sender.go(opened)
            case "chunk":
                if self._opened_checksum is not None:
                    raise DataLossError("a chunk came without its checksum")
                self._store(response.chunk.offset, response.chunk.data)
            case "error":
                raise from_in_band(response.error)
            case None:
                return

    def _store(self, offset: int, data: bytes | memoryview) -> None:
        if self._sender.checksum is not None and self._opened_checksum is None:
            raise DataLossError("a chunk came before opened")
        self.transfer.store(offset, data)

    def _verify(self, opened: v1.Opened, message: bytes) -> None:
        checksum = self._sender.checksum
        if checksum is None:
            return
        if not opened.HasField("checksum"):
            raise DataLossError("opened came without its checksum")
        verify_sealed(message, opened.checksum, after=checksum)
        self._opened_checksum = opened.checksum


class _Sender:
    """Messages for grpc's thread: open, then the requested input.

    The input starts at the byte that the server requests.

    error     of reading the input
    checksum  of open; None for a stream without checksums

    limit  largest chunk that the server accepts; None if unknown
    """

    def __init__(self, transfer: Transfer, *, limit: int | None, checked: bool) -> None:
        self._transfer = transfer
        self._open = transfer.begin()
        self.checksum = checksums.seal(self._open.open) if checked else None
        self._position = 0
        self._chunk_bytes = transfer.chunk_bytes
        self._reading = threading.Lock()
        self._stopped = False
        self._go = threading.Event()
        self.error: Exception | None = None
        if limit is not None and not self._open.open.resume_from:
            self._chunk_bytes = min(self._chunk_bytes, limit)
            self._go.set()

    def go(self, opened: v1.Opened) -> None:
        """Take the server's answer to the opening message; start sending chunks."""
        begun = self._go.is_set()
        self._transfer.too_large = begun and opened.max_chunk_bytes < self._chunk_bytes
        self._chunk_bytes = min(self._chunk_bytes, opened.max_chunk_bytes)
        if not begun:
            self._position = opened.read_from_byte
            self._go.set()

    def stop(self) -> None:
        """Send no more; read the input no more after the return."""
        with self._reading:
            self._stopped = True
        self._go.set()

    def messages(self) -> Iterator[bytes]:
        """Yield the messages, serialized."""
        yield self._open.SerializeToString()
        self._go.wait()
        while (message := self._next_chunk()) is not None:
            yield message
            # grpc asks for the next message once this one is on its way.
            self._transfer.note_sent(self._position)

    def _next_chunk(self) -> bytes | None:
        source, start = self._transfer.source, self._position
        with self._reading:
            if self._stopped or start == self._transfer.read_before:
                return None
            stop = min(source.chunk_stop(start, self._chunk_bytes), self._transfer.read_before)
            try:
                data = source.read(start, stop)
                message = chunk_frame(start, data, self.checksum)
            except Exception as error:  # noqa: BLE001 - the caller's thread raises it
                # The stream half-closes and the server ends it.
                self.error = error
                return None
        self._position = stop
        return message


def _returned(error: BaseException | None) -> GradwireError | None:
    """Return an error of the service; raise any other one.

    A retry may mend an error of the service.
    """
    if error is None or isinstance(error, GradwireError):
        return error
    raise error


class SplitTry:
    """The streams of one shared evaluation, from first to last.

    Each share has a thread. A share that no server has room for is transferred after the others,
    since their servers have room then.

    ended  event, set once no thread accesses the caller's arrays any more
    error  the first one; None while it runs and after success
    """

    def __init__(
        self,
        shares: Shares,
        evaluation: Evaluation,
        ended: threading.Event,
        start: Callable[..., StreamTry],
    ) -> None:
        self._shares = shares
        self._start = start
        self._recovery = evaluation.share_recovery
        # Seconds that a server has to answer before another one is asked.
        self._patience_s = evaluation.options.timeout_s / 2
        self._postpones = evaluation.options.retry.max_attempts > 1
        self._lock = threading.Lock()
        self._streams: set[StreamTry] = set()
        self._stopping = threading.Event()
        self._succeeded = False
        # Shares whose tries are over, and their errors.
        self._postponed: list[tuple[Transfer, GradwireError]] = []
        self.error: BaseException | None = None
        self.ended = ended

    def start(self) -> None:
        """Begin, once, in any thread; a cancelled try ends at once."""
        try:
            start_thread("split", self._run)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            self._fail(error)
            self.ended.set()

    def cancel(self) -> None:
        """Cancel all streams; stored bytes stay."""
        with self._lock:
            self._stopping.set()
            streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()

    def _run(self) -> None:
        started: list[threading.Thread] = []
        try:
            if (question := self._shares.ask()) is not None:
                self._transfer(question)
            if not self._stopping.is_set():
                parts = self._shares.cut()
                started.extend(start_thread("share", self._work, part) for part in parts)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)
        for thread in started:
            thread.join()
        try:
            for share, last in self._postponed:
                if not self._succeeded:
                    self._fail(last)
                share.moved_at = time.monotonic()
                self._transfer(share)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)
        if self._stopping.is_set() and self.error is None:
            self.error = CallCancelledError("the evaluation was cancelled")
        self.ended.set()

    def _work(self, share: Transfer) -> None:
        try:
            self._transfer(share)
            self._succeeded = True
        except GradwireError as error:
            if self._postpones and is_retryable(error, streamed=True):
                share.moved_at = math.inf
                self._postponed.append((share, error))
            else:
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._fail(error)

    def _transfer(self, share: Transfer) -> None:
        """Transfer a share, with retries."""
        recover = self._recovery()
        while (stream := self._begin(share)) is not None:
            error = self._outcome(stream)
            with self._lock:
                self._streams.discard(stream)
            if error is None or self._stopping.is_set():
                return
            self._stopping.wait(recover(error, share))

    def _begin(self, share: Transfer) -> StreamTry | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            stream = self._start(share, ended=threading.Event())
            stream.start()
            self._streams.add(stream)
            return stream

    def _outcome(self, stream: StreamTry) -> GradwireError | None:
        """Wait for the end of a stream; return its error, if any.

        Cancels the stream if no server answers in time.
        """
        silent = not (stream.ended.wait(self._patience_s) or stream.transfer.opened)
        if silent:
            stream.hang_up()
        stream.ended.wait()
        error = _returned(stream.error)
        if silent and error is not None:
            why = f"no answer from a server within {self._patience_s} s"
            return UnavailableError(why, request_id=error.request_id)
        return error

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None and not self._stopping.is_set():
                self.error = error
        self.cancel()


class StreamRun:
    """An evaluation by streams, tried until there is a result, or stop()."""

    def __init__(self, evaluation: Evaluation, channels: ClientChannels, runtime: Runtime) -> None:
        self._evaluation = evaluation
        self._channels = channels
        self._runtime = runtime
        self._stream: StreamTry | SplitTry | None = None
        self._stopped = runtime.event()

    async def run(self) -> None:
        """Repeat tries until there is a result, or raise the error."""
        evaluation = self._evaluation
        self._channels.register(self)
        while (error := await self._try()) is not None:
            if self._stopped.is_set():
                raise error
            pause = partial(next_pause_s, error, evaluation.recover, evaluation.options)
            if await self._runtime.wait(self._stopped, await self._runtime.elsewhere(pause)):
                raise error

    def stop(self) -> None:
        """Cancel the current try and make no other; callable from any thread."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.cancel()

    async def _try(self) -> GradwireError | None:
        evaluation = self._evaluation
        with call_span("EvaluateStream", self._channels.options) as span:
            self._stream = stream = self._new(span.metadata)
            if self._stopped.is_set():
                stream.cancel()
            self._runtime.start(stream.start)
            try:
                while not await self._runtime.wait(stream.ended, evaluation.next_look_s()):
                    evaluation.look()
            except BaseException:
                stream.cancel()
                await self._runtime.wait(stream.ended, None)
                raise
            span.answer = error = _returned(stream.error)
        return error

    def _new(self, metadata: Sent | None) -> StreamTry | SplitTry:
        evaluation, channels = self._evaluation, self._channels
        shares, ended = evaluation.shares, self._runtime.event()
        begin = partial(StreamTry, channels, evaluation, metadata=metadata)
        if shares.whole is None:
            begin = partial(begin, pool=channels.shares, eager=False)
            return SplitTry(shares, evaluation, ended, begin)
        pool, eager = channels.streams, evaluation.eager
        return begin(shares.whole, pool=pool, eager=eager, ended=ended)
