"""Streams of EvaluateMany, for both clients.

One engine receives answers, renews broken streams and makes the calls of large items. The iterating
thread of Client runs it step by step: handing each result to another thread costs a quarter more. A
thread of its own runs it for AsyncClient, and for Client where items come slowly. grpc's own thread
sends: a call of grpc.aio would lose the error that ends its stream if it arrives while a request is
being written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar, cast

import grpc

from gradwire._core.batch import ItemBatch, PendingItem
from gradwire._core.retries import is_retryable
from gradwire._transport.channels import (
    ClientChannels,
    PerProcess,
    PooledChannel,
    from_rpc_error,
    next_pause_s,
    start_thread,
)
from gradwire._transport.streams import StreamRun
from gradwire._transport.tracing import call_span
from gradwire._transport.unary import Runtime, UnaryCalls, now
from gradwire.errors import CallCancelledError, GradwireError, ServerError
from gradwire.tensors import Array

T_co = TypeVar("T_co", covariant=True)

# Seconds that taking items may hold up results that could be handed over.
QUICK_S = 0.05
# Seconds that a server has to end a finished stream.
_CLOSING_S = 1.0

# Looks at a stream during the seconds after which it counts as stalled.
_LOOKS = 16

# Streams of a parent process: finalizing one here would end it there.
_OF_PARENTS: list[BatchStream] = []


class BatchEngine:
    """Runs a batch: its stream, and separate calls for large items.

    batch    its items
    stopped  whether the client was closed

    notify  called after each step that a thread makes
    """

    def __init__(self, calls: UnaryCalls, batch: ItemBatch, notify: Callable[[], object]) -> None:
        self.batch = batch
        self._calls = calls
        self._notify = notify
        self._run: StreamRun | None = None
        self._process = os.getpid()
        # The caller's span is the parent of the streams' spans.
        self._context = copy_context()
        self._stream: BatchStream | None = None
        self._fault: BaseException | None = None
        self._work = threading.Event()
        self._ended = threading.Event()
        self.stopped = False
        calls.channels.register(self)

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the creating one."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"these results belong to process {self._process}, from which this one was forked;"
                " call evaluate_many() here"
            )

    def add(self, item: object) -> None:
        """Take an item."""
        self.batch.add(item, self._send)
        if not self._work.is_set():
            self._work.set()

    def outcome(self) -> PendingItem | None:
        """Return the next outcome, if any.

        Raises the exception that ended the engine's thread.
        """
        if self.stopped:
            self.batch.cancel()
        fault, self._fault = self._fault, None
        if fault is not None:
            self.close()
            raise fault
        return self.batch.outcome()

    def start(self) -> None:
        """Start the thread that runs the engine, once, from any thread.

        If no thread can be started, outcome() raises.
        """
        try:
            start_thread("receiver", self._context.run, self._run_steps)
        except RuntimeError as error:
            self._fault = error
            self._notify()

    def _run_steps(self) -> None:
        """Run steps while there is work; wait for more."""
        try:
            while not self._ended.is_set():
                if self.batch.busy:
                    self.step()
                    self._notify()
                else:
                    self._work.clear()
                    if not (self.batch.busy or self._ended.is_set()):
                        self._work.wait()
        except BaseException as error:  # noqa: BLE001 - outcome() raises it
            if not self._ended.is_set():
                self._fault = error
        self._hang_up()
        self._notify()

    def step(self) -> None:
        """Do one thing that takes time: receive, connect, call, or pause."""
        batch, stream = self.batch, self._stream
        batch.send_due(self._send)
        if batch.in_flight == 1 and stream is not None and not stream.is_active:
            # A server ends streams that are idle for long.
            self._hang_up()
            stream = None
        if batch.in_flight:
            if stream is None:
                self.connect()
            else:
                self._in_stream(lambda: batch.take(stream.receive()))
        elif batch.alone:
            self._call(*batch.alone.popleft())
        elif batch.due_in_s is not None:
            self._ended.wait(batch.due_in_s)

    def connect(self) -> None:
        """Begin a stream with all items in flight, unless one is open."""
        batch = self.batch
        with batch.lock:
            if self._stream is not None:
                return
            stream = self._stream = BatchStream(self._calls.channels, batch.patience_s)
            for request in batch.begin():
                stream.send(request)
        self._in_stream(stream.start)

    def stop(self) -> None:
        """Stop since the client is closed; open items then get errors."""
        self.stopped = True
        self._ended.set()
        self._work.set()

    def finish(self) -> None:
        """End the stream after the last answer."""
        if self._stream is not None:
            self._stream.finish()
        self.close()

    def close(self) -> None:
        """End the stream and the thread at once."""
        self.batch.close()
        self._ended.set()
        self._work.set()
        if self._run is not None:
            self._run.stop()
        self._hang_up()

    def _send(self, request: bytes) -> None:
        if self._stream is not None:
            self._stream.send(request)

    def _in_stream(self, action: Callable[[], object]) -> None:
        """Act on the stream; end it after an error."""
        try:
            action()
        except GradwireError as error:
            stalled = self._stream is not None and self._stream.stalled
            self._recover(self.batch.stalled() if stalled else error)
        except BaseException:
            # As when no thread can be started. After one such as KeyboardInterrupt a message may be
            # lost.
            self._hang_up()
            raise

    def _call(self, pending: PendingItem, array: Array) -> None:
        """Evaluate an item by a separate call.

        A server may need the stream's place for it.
        """
        if self._stream is not None:
            self._stream.finish()
            self._hang_up()
        try:
            self.batch.settle(pending, result=self._evaluate(pending, array))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            self.batch.settle(pending, error=error)

    def _evaluate(self, pending: PendingItem, array: Array) -> Array:
        channels, template = self._calls.channels, pending.template
        evaluation = channels.evaluation(
            op=template.op,
            array=array,
            output_shape=None if template.output is None else template.output.sizes,
            out=pending.out,
            timeout_s=self.batch.timeout_s,
        )
        now(self._calls.evaluate(evaluation))
        if evaluation.streams:
            self._run = StreamRun(evaluation, channels, Runtime())
            if self._ended.is_set():
                self._run.stop()
            now(self._run.run())
        return evaluation.result()

    def _recover(self, error: GradwireError) -> None:
        self._hang_up()
        if self._ended.is_set():
            return
        try:
            pause_s = next_pause_s(error, self.batch.broke, self._calls.channels.options)
        except GradwireError as last:
            self.batch.give_up(last)
        else:
            self._ended.wait(pause_s)

    def _hang_up(self) -> None:
        with self.batch.lock:
            stream, self._stream = self._stream, None
        if stream is not None and os.getpid() != self._process:
            _OF_PARENTS.append(stream)
        elif stream is not None:
            stream.cancel()


class Outcomes(Generic[T_co]):
    """Base of both clients' iterators over results.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(self, engine: BatchEngine) -> None:
        self.index = -1
        self._engine = engine
        self._drop = _CLOSER.get().put
        # Each may be called again, and by several threads at once.
        self._at_close: list[Callable[[], object]] = [engine.close]

    def _deliver(self, pending: PendingItem) -> T_co:
        """Return an item's result, or raise its error.

        An unordered result comes with the place of its item.
        """
        self.index = pending.index
        if pending.error is not None:
            raise pending.error
        ordered = self._engine.batch.ordered
        result: Any = pending.result if ordered else (pending.index, pending.result)
        return cast("T_co", result)

    def __del__(self) -> None:
        for action in getattr(self, "_at_close", ()):
            self._drop(action)


class Results(Outcomes[T_co], Iterator[T_co]):
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
        calls: UnaryCalls,
        batch: ItemBatch,
    ) -> None:
        self._items = iter(items)
        self._asked = threading.Lock()
        self._news = threading.Event()
        self._threaded = False
        super().__init__(BatchEngine(calls, batch, self._news.set))

    def __next__(self) -> T_co:
        self._engine.check_process()
        if not self._asked.acquire(blocking=False):
            raise RuntimeError(
                "the next of these results is asked for already, by another thread or by what "
                "makes the items; iterate in one thread at a time"
            )
        try:
            pending = self._outcome()
            if pending is None:
                self._engine.finish()
                raise StopIteration
        finally:
            self._asked.release()
        return self._deliver(pending)

    def close(self) -> None:
        """Take no more items and cancel the rest; next() raises StopIteration.

        The caller closes a generator that makes the items.
        """
        self._engine.close()

    def _outcome(self) -> PendingItem | None:
        batch, engine = self._engine.batch, self._engine
        while True:
            self._news.clear()
            pending = engine.outcome() if self._threaded or engine.stopped else None
            if pending is None:
                self._take_items()
                pending = engine.outcome()
            if pending is not None or batch.over:
                return pending
            if not self._threaded:
                engine.step()
            elif not batch.wants:
                self._news.wait()

    def _take_items(self) -> None:
        batch, engine = self._engine.batch, self._engine
        until = time.monotonic() + QUICK_S
        while batch.wants:
            try:
                item = next(self._items)
            except StopIteration:
                batch.end()
            except Exception as error:  # noqa: BLE001 - it is raised behind the items before it
                batch.end(error)
            else:
                engine.add(item)
                if batch.in_flight == 1 and not self._threaded:
                    engine.connect()
            if time.monotonic() > until:
                # Results should not wait until many items are there.
                if not self._threaded:
                    self._threaded = True
                    engine.start()
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_closer() -> SimpleQueue[Callable[[], object]]:
    """Start a thread that closes dropped results; return its queue.

    Garbage collection drops results in any thread, also within locked sections of grpc and of the
    client: closing them there could wait for a lock that the thread itself holds.
    """
    dropped: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def close_all() -> None:
        while True:
            with contextlib.suppress(Exception):
                dropped.get()()

    start_thread("closer", close_all)
    return dropped


_CLOSER = PerProcess(_start_closer)


class BatchStream:
    """Sends requests and receives answers, both serialized, from start() on.

    stalled  whether receive() has waited for longer than patience_s
    """

    def __init__(self, channels: ClientChannels, patience_s: float) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._patience_s = patience_s
        self._waiting_since: float | None = None
        self._over = threading.Event()
        self._pool, self._failed = channels.unary, False
        self.stalled = False
        self._call: Any = None
        # Taken for good by the thread that ends it: others may cancel at the same time.
        self._ending = threading.Lock()
        self._at_end = contextlib.ExitStack()
        self._span = self._at_end.enter_context(call_span("EvaluateMany", channels.options))

    def start(self) -> None:
        """Begin the stream, once, in any thread.

        Raises CallCancelledError if it was cancelled before or the channel is closed,
        UnavailableError if no server is known.
        """
        try:
            if self._over.is_set():
                raise CallCancelledError("cancelled before it began")
            taken = self._pool.take()
            self._at_end.callback(self._give_back, taken)
            requests = iter(self._requests.get, None)
            metadata = self._span.metadata
            self._call = taken.begin_stream("EvaluateMany", requests, metadata=metadata)
            start_thread("watch", self._watch)
        except GradwireError as error:
            self._end(error)
            raise
        if self._over.is_set():
            self.cancel()

    def send(self, request: bytes) -> None:
        """Send a request without waiting for its transmission."""
        self._requests.put(request)

    @property
    def is_active(self) -> bool:
        """Whether it has begun and not ended."""
        return self._call is not None and bool(self._call.is_active())

    def receive(self) -> bytes:
        """Wait for the next answer; raise GradwireError if none comes."""
        self._waiting_since = time.monotonic()
        try:
            message: bytes = next(self._call)
        except StopIteration:
            raise ServerError("the server ended the stream before its last answer") from None
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            self._failed = is_retryable(failure, streamed=True)
            raise failure from error
        self._waiting_since = None
        return message

    def finish(self) -> None:
        """End the stream after the last answer."""
        ended = threading.Event()
        self._requests.put(None)
        if self._call is not None and self._call.add_callback(ended.set):
            ended.wait(_CLOSING_S)
        self.cancel()

    def cancel(self) -> None:
        """End the stream at once.

        receive() then raises, if another thread waits in it.
        """
        self._over.set()
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()
            ok = self._call.code() is grpc.StatusCode.OK
            self._end(None if ok else from_rpc_error(self._call))

    def _end(self, error: GradwireError | None) -> None:
        if self._ending.acquire(blocking=False):
            self._span.answer = error
            self._at_end.close()

    def _give_back(self, taken: PooledChannel) -> None:
        self._pool.give_back(taken, failed=self._failed)

    def _watch(self) -> None:
        """Cancel the call if receive() waits too long.

        grpc itself waits without a limit.
        """
        while not self._over.wait(self._patience_s / _LOOKS):
            since = self._waiting_since
            if since is not None and time.monotonic() > since + self._patience_s:
                self.stalled = True
                self._call.cancel()
                return
