"""Results of Client.evaluate_many, and streams of EvaluateMany for both clients.

The iterating thread takes items and receives answers. grpc's own thread sends: a call of grpc.aio
would lose the error that ends its stream if it arrives while a request is being written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
from numpy.typing import NDArray

from gradwire._core.batch import QUICK_S, ItemBatch, PendingItem
from gradwire._core.retries import is_retryable
from gradwire._transport.channels import BlockingChannel, ClientChannels, PerProcess, from_rpc_error
from gradwire._transport.pool import PooledChannel
from gradwire._transport.tracing import call_span
from gradwire._wire.arguments import Item
from gradwire.errors import CallCancelledError, GradwireError, ServerError

T_co = TypeVar("T_co", covariant=True)

# Streams of a parent process: finalizing one here would end it there.
_OF_PARENTS: list[BatchStream] = []


class Results(Iterator[T_co]):
    """Iterator over the results of `Client.evaluate_many`.

    next() raises the error of an item in its place; the next call continues with the next item. So
    a for loop ends with the first error; call next() to get the results after it. For one thread at
    a time, in the process that created it. Close it, or use it in a with statement, to cancel the
    rest.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self,
        items: Iterable[object],
        exchange: ItemBatch,
        links: PerProcess[ClientChannels],
        *,
        ordered: bool,
        evaluate: Callable[[Item], NDArray[Any]],
    ) -> None:
        self.index = -1
        self._connection = _Connection(exchange, links)
        self._items = iter(items)
        self._exchange = exchange
        self._ordered = ordered
        self._evaluate = evaluate
        self._asked = threading.Lock()

    def __next__(self) -> T_co:
        self._connection.check_process()
        if not self._asked.acquire(blocking=False):
            raise RuntimeError(
                "the next of these results is asked for already, by another thread or by what "
                "makes the items; iterate in one thread at a time"
            )
        try:
            slot = self._outcome()
            if slot is None:
                self._connection.finish()
                raise StopIteration
        finally:
            self._asked.release()
        self.index = slot.index
        if slot.error is not None:
            raise slot.error
        result: Any = slot.result if self._ordered else (slot.index, slot.result)
        return cast("T_co", result)

    def close(self) -> None:
        """Take no more items and cancel the rest; next() raises StopIteration.

        A generator that makes the items is the caller's to close.
        """
        self._exchange.close()
        self._connection.hang_up()

    def _outcome(self) -> PendingItem | None:
        exchange, connection = self._exchange, self._connection
        while True:
            if connection.closed:
                exchange.cancel()
                connection.hang_up()
            connection.take_received()
            slot = exchange.outcome() if connection.receives_ahead else None
            if slot is None:
                self._take_items()
                slot = exchange.outcome()
            if slot is not None or exchange.over:
                return slot
            if exchange.evaluates_alone:
                self._evaluate_alone()
            elif connection.receives_ahead and exchange.wants:
                continue
            elif exchange.in_flight:
                connection.receive()
            elif exchange.due_in_s is not None:
                time.sleep(exchange.due_in_s)

    def _take_items(self) -> None:
        exchange, connection = self._exchange, self._connection
        until = time.monotonic() + QUICK_S
        while exchange.wants:
            try:
                item = next(self._items)
            except StopIteration:
                exchange.end()
            except Exception as error:  # noqa: BLE001 - it is raised behind the items before it
                exchange.end(error)
            else:
                request = exchange.add(item)
                if request is not None:
                    connection.send(request)
            if time.monotonic() > until:
                # Results should not wait until many items are there.
                connection.receive_ahead()
                break
        for request in exchange.due():
            connection.send(request)

    def _evaluate_alone(self) -> None:
        exchange = self._exchange
        slot = exchange.begin_alone()
        if exchange.places.crowded:
            self._connection.finish()
        try:
            exchange.end_alone(slot, result=self._evaluate(slot.item))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            exchange.end_alone(slot, error=error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        connection: _Connection | None = getattr(self, "_connection", None)
        if connection is not None:
            connection.hang_up()


class _Connection:
    """The present stream, if any, and the timer of its stalls.

    receives_ahead  whether another thread receives answers between calls of next(): that costs a
                    quarter more, and is for slow iterables
    """

    def __init__(self, exchange: ItemBatch, links: PerProcess[ClientChannels]) -> None:
        self._exchange = exchange
        self._links = links
        self._link = links.get()
        self._process = os.getpid()
        self._stream: BatchStream | None = None
        self._watch: _StallTimer | None = None
        self.receives_ahead = False

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._links.closed

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the creating one."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"these results belong to process {self._process}, from which this one was forked;"
                " call evaluate_many() here"
            )

    def send(self, request: bytes) -> None:
        """Send a request that is in flight now."""
        if self._stream is None:
            self._connect()
        else:
            self._stream.send(request)

    def receive(self) -> None:
        """Take the next message, on a new stream where the last one broke."""
        if self._stream is None or self._watch is None:
            self._connect()
            return
        self._watch.begin()
        try:
            self._exchange.take(self._stream.receive())
        except GradwireError as error:
            self._recover(self._exchange.stalled() if self._watch.expired else error)
        except BaseException:
            # Such as KeyboardInterrupt: a message may be lost.
            self.hang_up()
            raise
        else:
            self._watch.end()

    def receive_ahead(self) -> None:
        """Receive ahead from now on."""
        self.receives_ahead = True
        if self._stream is not None:
            self._stream.receive_ahead()

    def take_received(self) -> None:
        """Take the messages that have been received ahead."""
        while self._stream is not None and self._stream.has_received:
            self.receive()

    def finish(self) -> None:
        """End the stream after the last answer."""
        if self._stream is not None:
            self._stream.finish()
        self.hang_up()

    def hang_up(self) -> None:
        """End the stream at once."""
        stream, self._stream = self._stream, None
        watch, self._watch = self._watch, None
        if stream is not None and os.getpid() != self._process:
            _OF_PARENTS.append(stream)
        elif stream is not None:
            stream.cancel()
        if watch is not None:
            watch.stop()

    def _connect(self) -> None:
        exchange = self._exchange
        try:
            self._stream = BatchStream(self._link, exchange.begin())
            self._stream.start()
        except GradwireError as error:
            self._recover(error)
            return
        if self.receives_ahead:
            self._stream.receive_ahead()
        self._watch = _StallTimer(self._stream.cancel, exchange.timeout_s)

    def _recover(self, error: GradwireError) -> None:
        self.hang_up()
        if not self.closed:
            time.sleep(self._exchange.broke(error))


class _StallTimer:
    """Calls on_stall() in a thread of its own after timeout_s, since grpc waits without a limit.

    expired  whether it did
    """

    _LOOKS = 8

    def __init__(self, on_stall: Callable[[], None], timeout_s: float) -> None:
        self._on_stall = on_stall
        self._timeout_s = timeout_s
        self._since: float | None = None
        self._stopped = threading.Event()
        self.expired = False
        threading.Thread(target=self._look, name="gradwire-watch", daemon=True).start()

    def begin(self) -> None:
        """Start the time."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Stop the time."""
        self._since = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _look(self) -> None:
        # Short intervals only while an operation is close to its limit.
        left_s = self._timeout_s / self._LOOKS
        while not self._stopped.wait(left_s):
            since = self._since
            left_s = self._timeout_s / self._LOOKS
            if since is not None:
                left_s = since + self._timeout_s - time.monotonic()
            if left_s <= 0:
                self.expired = True
                self._on_stall()
                return


_METHOD = "/gradwire.v1.GradientService/EvaluateMany"

# Seconds that a server has to end a finished stream.
_CLOSING_S = 1.0


class BatchStream:
    """Sends requests and receives answers, both serialized, from start() on."""

    def __init__(self, link: ClientChannels, requests: Iterable[bytes]) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        for request in requests:
            self._requests.put(request)
        self._pool, self._failed, self._ended = link.unary, False, False
        self._ending = threading.Lock()  # another thread may cancel
        self._cancelled = False
        self._seat: PooledChannel[BlockingChannel] | None = None
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
            # The channel is closed.
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
