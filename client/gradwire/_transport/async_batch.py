"""Results of AsyncClient.evaluate_many, and the tasks that produce them.

One task takes items, another one maintains the stream, and a thread receives. The iterating task
only waits for outcomes; it may be cancelled and iterate again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from numpy.typing import NDArray

from gradwire._core.batch import QUICK_S, ItemBatch, PendingItem, each
from gradwire._transport.async_channels import AsyncClientChannels
from gradwire._transport.batch import BatchStream
from gradwire._transport.channels import PerProcess
from gradwire._wire.arguments import Item
from gradwire.errors import CallCancelledError, GradwireError

T_co = TypeVar("T_co", covariant=True)


class AsyncResults(AsyncIterator[T_co]):
    """Asynchronous iterator over the results of `AsyncClient.evaluate_many`.

    As Results, awaited: `async for`, or anext() to go on behind an item that failed. Close it with
    aclose(), or use it in an async with statement, to cancel the rest.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self,
        items: Iterable[object] | AsyncIterable[object],
        exchange: ItemBatch,
        links: PerProcess[AsyncClientChannels],
        *,
        ordered: bool,
        evaluate: Callable[[Item], Awaitable[NDArray[Any]]],
    ) -> None:
        self.index = -1
        self._ordered = ordered
        self._work = _Work(items, exchange, links, evaluate=evaluate)

    async def __anext__(self) -> T_co:
        slot = await self._work.outcome()
        if slot is None:
            await self._work.finish()
            raise StopAsyncIteration
        self.index = slot.index
        if slot.error is not None:
            raise slot.error
        result: Any = slot.result if self._ordered else (slot.index, slot.result)
        return cast("T_co", result)

    async def aclose(self) -> None:
        """Take no more items and cancel the rest; anext() raises StopAsyncIteration.

        A generator that makes the items is the caller's to close.
        """
        self._work.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        work: _Work | None = getattr(self, "_work", None)
        if work is not None:
            work.abandon()


class _Work:
    """Tasks and stream of one evaluate_many."""

    def __init__(
        self,
        items: Iterable[object] | AsyncIterable[object],
        exchange: ItemBatch,
        links: PerProcess[AsyncClientChannels],
        *,
        evaluate: Callable[[Item], Awaitable[NDArray[Any]]],
    ) -> None:
        self._items = items if isinstance(items, AsyncIterable) else iter(items)
        self._exchange = exchange
        self._links = links
        self._link = links.get()
        self._evaluate = evaluate
        self._tasks: list[asyncio.Task[None]] = []
        self._stream: BatchStream | None = None
        self._error: GradwireError | None = None
        self._pausing = self._closed = False
        self._moved_at = 0.0
        # Messages received by threads that the loop has not processed yet.
        self._inbox: deque[tuple[BatchStream, bytes | GradwireError]] = deque()
        self._delivering = threading.Lock()
        # Wake the task that takes items, the one that maintains the stream, and the caller.
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._settled = asyncio.Event()

    async def outcome(self) -> PendingItem | None:
        """Wait for the next outcome; None when there is none any more."""
        exchange = self._exchange
        if not self._tasks and not exchange.over:
            self._tasks = [asyncio.ensure_future(each) for each in (self._take(), self._keep())]
            for task in self._tasks:
                task.add_done_callback(lambda _: self._settled.set())
        while True:
            slot = exchange.outcome()
            if slot is not None or exchange.over:
                self._room.set()
                return slot
            for task in self._tasks:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    self.close()
                    raise error
            self._settled.clear()
            await self._settled.wait()

    async def finish(self) -> None:
        """End the stream after the last answer."""
        await self._end_stream()
        self.close()

    def close(self) -> None:
        """Cancel tasks and stream."""
        self._closed = True
        self._exchange.close()
        self._hang_up()
        for task in self._tasks:
            task.cancel()
        self._settled.set()

    def abandon(self) -> None:
        """Close without awaiting, from any thread."""
        if self._tasks and not self._closed:
            self._link.in_loop(self.close)

    async def _take(self) -> None:
        exchange = self._exchange
        until = time.monotonic() + QUICK_S
        try:
            async for item in each(self._items):
                request = exchange.add(item)
                if request is None:
                    self._settled.set()
                    self._news.set()
                else:
                    self._send(request)
                if time.monotonic() > until:
                    # Items made without awaiting anything must not block the other tasks.
                    await asyncio.sleep(0)
                    until = time.monotonic() + QUICK_S
                while not exchange.wants:
                    self._room.clear()
                    await self._room.wait()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            # It is raised behind the items before it; or else the end has come already.
            exchange.end(error)
        else:
            exchange.end()
        self._settled.set()

    async def _keep(self) -> None:
        exchange = self._exchange
        self._link.closing.add(self._news)
        while not self._links.closed:
            self._news.clear()
            error, self._error = self._error, None
            if error is not None:
                await self._recover(error)
            if exchange.evaluates_alone:
                await self._evaluate_alone()
                continue
            for request in exchange.due():
                self._send(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s()):
                    await self._news.wait()
            if self._stream is not None and self._silent_s() >= exchange.timeout_s:
                self._error = exchange.stalled()
        exchange.cancel()
        self._hang_up()
        taking, _ = self._tasks
        taking.cancel()
        self._settled.set()

    def _silent_s(self) -> float:
        """Seconds for which something was in flight and no answer came."""
        return time.monotonic() - self._moved_at if self._exchange.in_flight else 0.0

    def _patience_s(self) -> float:
        """Return the seconds until there is something to do without news."""
        left_s = max(0.0, self._exchange.timeout_s - self._silent_s())
        due_in_s = self._exchange.due_in_s
        return left_s if due_in_s is None else min(left_s, due_in_s)

    def _send(self, request: bytes) -> None:
        if self._exchange.in_flight == 1:
            self._moved_at = time.monotonic()
        if self._stream is not None:
            self._stream.send(request)
        elif self._error is None and not self._pausing:
            self._connect()

    def _connect(self) -> None:
        self._moved_at = time.monotonic()
        if self._links.closed:
            self._news.set()
            return
        self._stream = stream = BatchStream(self._link.blocking, self._exchange.begin())
        self._link.streams.start(partial(self._start, stream))

    def _start(self, stream: BatchStream) -> None:
        """Start a stream and the thread that receives of it, in another thread than the loop's."""
        try:
            stream.start()
            threading.Thread(
                target=self._receive, args=(stream,), name="gradwire-receiver", daemon=True
            ).start()
        except GradwireError as error:
            self._deliver(stream, error)
        except RuntimeError as error:
            # No thread can be started.
            stream.cancel()
            self._deliver(stream, CallCancelledError(str(error)))

    def _receive(self, stream: BatchStream) -> None:
        """Receive messages in a thread of its own, and wake the loop once for many of them."""
        came: bytes | GradwireError = b""
        while not isinstance(came, GradwireError):
            try:
                came = stream.receive()
            except GradwireError as error:
                came = error
            self._deliver(stream, came)

    def _deliver(self, stream: BatchStream, came: bytes | GradwireError) -> None:
        with self._delivering:
            self._inbox.append((stream, came))
            first = len(self._inbox) == 1
        if first:
            self._link.in_loop(self._absorb)

    def _absorb(self) -> None:
        exchange = self._exchange
        while self._inbox:
            stream, came = self._inbox[0]
            if stream is self._stream:
                try:
                    if isinstance(came, GradwireError):
                        raise came
                    exchange.take(came)
                except GradwireError as error:
                    self._hang_up()
                    self._error = error
            # Removed last: the thread wakes the loop only for an empty inbox.
            self._inbox.popleft()
        self._moved_at = time.monotonic()
        self._settled.set()
        if self._error is not None or exchange.alone or exchange.due_in_s is not None:
            self._news.set()

    async def _recover(self, error: GradwireError) -> None:
        self._hang_up()
        if self._links.closed:
            return
        self._pausing = True
        await asyncio.sleep(self._exchange.broke(error))
        self._pausing = False
        self._settled.set()
        if self._exchange.in_flight and self._stream is None:
            self._connect()

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    async def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await asyncio.to_thread(stream.finish)

    async def _evaluate_alone(self) -> None:
        exchange = self._exchange
        slot = exchange.begin_alone()
        if exchange.places.crowded:
            await self._end_stream()
        try:
            exchange.end_alone(slot, result=await self._evaluate(slot.item))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            exchange.end_alone(slot, error=error)
        self._settled.set()
