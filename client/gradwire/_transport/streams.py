"""Tries of EvaluateStream on blocking grpc calls in threads, for both clients.

grpc's own thread asks the sender for messages, one at a time as the network takes them; a second
thread receives; the thread or task that started the try watches both. AsyncClient uses them too:
a writer of grpc.aio was seen to lose the error that ends its stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import grpc
from google.protobuf.message import DecodeError

from gradwire import v1
from gradwire._core.evaluation import Evaluation
from gradwire._core.reports import Metadata
from gradwire._core.retries import is_retryable
from gradwire._core.split import ShareCoordinator, Shares
from gradwire._transport.channels import BlockingChannel, ClientChannels, from_rpc_error
from gradwire._transport.pool import Pool
from gradwire._transport.tracing import Context, call_span
from gradwire._wire.framing import chunk_frame, read_chunk
from gradwire._wire.statuses import from_in_band
from gradwire.chunks import Transfer
from gradwire.errors import CallCancelledError, GradwireError, ServerError, UnavailableError


class StreamTry:
    """One try, from start() to the end of the stream.

    ended   set once no thread accesses the caller's arrays any more
    error   of a failed try; None while it runs and after success. Anything but a GradwireError is
            a local fault, such as an unreadable input
    opened  whether the server has answered open

    chunk_bytes  most bytes to send in one chunk
    eager        whether to send before the server has answered, where its limits are known
    timeout_s    seconds from start() until the deadline; None where there is none
    metadata     of the call; None for none
    on_end       called in another thread after `ended` is set
    lines        connections of the link to take one of; None for those of streams
    """

    def __init__(
        self,
        link: ClientChannels,
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
        """Begin the try, once, in any thread; a cancelled one ends at once."""
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
                # grpc raises this for a closed channel.
                raise CallCancelledError(str(error), request_id=self._request_id) from error
            raise

    @property
    def sent_too_large(self) -> bool:
        """Whether chunks were sent that turned out to be larger than the server takes."""
        allowed = self._sender.limit
        return allowed is not None and self._sender.largest > allowed

    def cancel(self) -> None:
        """Cancel the try; stored bytes stay."""
        self._cancelled = True
        self.hang_up()

    def hang_up(self) -> None:
        """Cancel the try as a failed one: the next one takes another server if it can."""
        if self._call is not None:
            self._call.cancel()

    def trailers(self) -> Metadata:
        """Return the trailing metadata of a try that has succeeded."""
        return () if self._call is None else self._call.trailing_metadata() or ()

    def outcome(self) -> GradwireError | None:
        """Return the error of a failed try, None after success.

        Raises errors other than GradwireError, and the error of a try that could not begin.
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
    """Messages for grpc's thread: open, then the input from the byte that the server requests.

    largest  bytes of the largest chunk sent
    limit    largest chunk that the server accepts; None if unknown
    error    of reading the input
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
        """Take the server's answer to open; start sending chunks."""
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


class SplitTry:
    """The streams of one shared evaluation, from the first open to the end of the last.

    ended  set once no thread accesses the caller's arrays any more

    start    makes a stream for a share
    recover     returns, for each share, a function that returns the seconds to wait before the next
                try, or raises its error
    patience_s  seconds that a server has to answer before another one is asked
    rests       whether a share without tries left may wait for another one to end
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
        self._shifts = ShareCoordinator(1)
        self._error: BaseException | None = None
        self._trailers: Metadata = ()
        self.ended = threading.Event()
        self.sent_too_large = False

    def start(self) -> None:
        """Begin, once, in any thread; a cancelled try ends at once."""
        try:
            threading.Thread(target=self._run, name="gradwire-split", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - outcome() raises it
            self._fail(error)
            self._end_all()

    def cancel(self) -> None:
        """Cancel all streams; stored bytes stay."""
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
        """Return the error of failed streams, if any; raise errors other than GradwireError."""
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
            self._shifts = ShareCoordinator(len(transfers))
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
        """Transfer one share, with retries."""
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
        """Wait for the end of a stream; cancel it if no server answers in time."""
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
        """Wait until another share has ended; return False if that does not help."""
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


def start_stream(
    evaluation: Evaluation,
    link: ClientChannels,
    *,
    metadata: Context | None = None,
    on_end: Callable[[], None] | None = None,
    elsewhere: Callable[[Callable[[], None]], object] | None = None,
) -> StreamTry | SplitTry:
    """Start a try of EvaluateStream.

    on_end     called in another thread after the try has ended
    elsewhere  runs a function in another thread, soon; None to start the try in this one
    """
    transfer, options = evaluation.transfer, evaluation.options

    def new(
        transfer: Transfer,
        lines: Pool[BlockingChannel],
        *,
        eager: bool = False,
        on_end: Callable[[], None] | None = None,
    ) -> StreamTry:
        return StreamTry(
            link,
            transfer,
            lines=lines,
            request_id=evaluation.request_id,
            chunk_bytes=options.chunk_bytes,
            eager=eager,
            timeout_s=evaluation.begin_stream(),
            metadata=metadata,
            on_end=on_end,
        )

    stream: StreamTry | SplitTry
    if isinstance(transfer, Shares):
        stream = SplitTry(
            transfer,
            start=lambda share: new(share, link.shares),
            recover=evaluation.share_recovery,
            patience_s=options.timeout_s / 2,
            rests=options.retry.max_attempts > 1,
            on_end=on_end,
        )
    else:
        # After a failure the sender waits for the server's answer: an error is lost more easily to
        # a sender that is ahead.
        eager = evaluation.stream is None
        stream = new(transfer, link.streams, eager=eager, on_end=on_end)
    evaluation.stream = stream
    if elsewhere is None:
        stream.start()
    else:
        elsewhere(stream.start)
    return stream


def try_stream(evaluation: Evaluation, link: ClientChannels) -> GradwireError | None:
    """Run a try to its end; return its error, None after success."""
    with call_span("EvaluateStream", target=link.target, bearer=link.bearer) as span:
        error = _watch(evaluation, link, metadata=span.metadata)
        span.note(error)
    return error


def _watch(
    evaluation: Evaluation, link: ClientChannels, *, metadata: Context | None
) -> GradwireError | None:
    stream = start_stream(evaluation, link, metadata=metadata)
    try:
        while not stream.ended.wait(evaluation.next_look_s()):
            evaluation.look()
    except BaseException:
        stream.cancel()
        stream.ended.wait()
        raise
    return stream.outcome()
