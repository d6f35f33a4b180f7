"""Transport for asyncio: grpc.aio for unary calls, threads for the rest.

The blocking transport makes all other calls. A stream takes two threads, each of which competes
with the event loop for the interpreter, and starting one may take as long as a turn of the loop. So
another thread starts them, and streams beyond a bound wait in order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

import grpc

from gradwire._core.batch import ItemBatch, PendingItem
from gradwire._core.evaluation import Evaluation
from gradwire._core.options import Options
from gradwire._transport.batch import QUICK_S, BatchEngine, Outcomes
from gradwire._transport.channels import ClientChannels, Pool, open_channel
from gradwire._transport.unary import OnTrailers, Runtime, UnaryCalls
from gradwire.errors import CallCancelledError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_STREAMS = 64

open_aio_channel = partial(open_channel, api=grpc.aio)


class AsyncClientChannels(Runtime):
    """The connections of a client of asyncio in one process.

    As a Runtime it suspends the task wherever the coroutine of a call waits.

    loop            event loop of the connections
    calls           of tasks
    blocking        connections of streams
    blocking_calls  calls for threads
    """

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.blocking = ClientChannels(options, waits=False)
        self._unary = Pool(
            options,
            close_one=self._start_closing,
            replicas=self.blocking.replicas,
            api=grpc.aio,
        )
        self.calls = UnaryCalls(self.blocking, self, self._unary)
        self.blocking_calls = UnaryCalls(self.blocking, Runtime())
        self._closing: set[asyncio.Future[None]] = set()
        self._free = asyncio.Semaphore(MAX_STREAMS)
        self._turn = asyncio.Lock()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="gradwire-starter")

    @asynccontextmanager
    async def admitted(self, evaluation: Evaluation) -> AsyncGenerator[None]:
        """Hold places for the streams of an evaluation during the block.

        Waits until they are free.

        Raises DeadlineExceededError after the deadline, CallCancelledError where the client is
        closed.
        """
        taken = 0
        left_s = None if math.isinf(evaluation.left_s) else evaluation.left_s
        try:
            try:
                async with asyncio.timeout(left_s), self._turn:
                    while taken < min(evaluation.shares.count, MAX_STREAMS):
                        await self._free.acquire()
                        taken += 1
            except TimeoutError as error:
                raise evaluation.too_late() from error
            if self.blocking.closed:
                raise CallCancelledError("the client was closed")
            evaluation.shares.note_begin()
            yield
        finally:
            for _ in range(taken):
                self._free.release()

    def start(self, action: Callable[[], object]) -> None:
        """Have the starting thread call a function that does not block."""
        if self.blocking.closed:
            raise CallCancelledError("the client was closed")
        self._starter.submit(action)

    async def close(self) -> None:
        """Close the channels and cancel their calls."""
        self.blocking.closed = True
        for each in self._unary.close():
            await each.close()
        await asyncio.to_thread(self.blocking.close)
        # Work submitted before is still done.
        self._starter.shutdown(wait=False)

    def _start_closing(self, channel: grpc.aio.Channel) -> None:
        def start() -> None:
            closing = asyncio.ensure_future(channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        self.in_loop(start)

    def in_loop(self, action: Callable[[], object]) -> None:
        """Call a function in the loop's thread, from another thread."""
        with contextlib.suppress(RuntimeError):
            # A closed loop has no waiters.
            self.loop.call_soon_threadsafe(action)

    def event(self) -> LoopEvent:
        """Return a new event for wait()."""
        return LoopEvent(self)

    async def send(
        self, method: Any, request: bytes, on_trailers: OnTrailers, **options: Any
    ) -> bytes | None:
        """Call a method through grpc.aio."""
        call = method(request, **options)
        reply: bytes | None = await call
        if on_trailers is not None:
            on_trailers(await call.trailing_metadata())
        return reply

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        await asyncio.sleep(seconds)

    async def wait(self, event: LoopEvent, timeout_s: float | None) -> bool:
        """Wait for an event; return whether it has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await event.in_loop.wait()
        return False

    async def elsewhere(self, function: Callable[[], T]) -> T:
        """Call a function in another thread."""
        return await asyncio.to_thread(function)


class LoopEvent(threading.Event):
    """An event that tasks await and that any thread may set."""

    def __init__(self, channels: AsyncClientChannels) -> None:
        super().__init__()
        self._channels = channels
        self.in_loop = asyncio.Event()

    def set(self) -> None:
        """Set it; the loop notices a moment later."""
        if not self.is_set():
            super().set()
            self._channels.in_loop(self.in_loop.set)

    def clear(self) -> None:
        """Clear it, in the loop's thread."""
        super().clear()
        self.in_loop.clear()


class AsyncResults(Outcomes[T_co], AsyncIterator[T_co]):
    """Asynchronous iterator over the results of `AsyncClient.evaluate_many`.

    As Results, but awaited: use `async for`, or anext() to continue after an item that failed.
    Close it with aclose(), or use it in an async with statement, to cancel the rest.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self,
        items: Iterable[object] | AsyncIterable[object],
        channels: AsyncClientChannels,
        batch: ItemBatch,
    ) -> None:
        self._items = items if isinstance(items, AsyncIterable) else _each(iter(items))
        self._channels = channels
        self._begun = False
        # Wake the task that takes items, and the caller.
        self._room = asyncio.Event()
        self._news = LoopEvent(channels)
        super().__init__(BatchEngine(channels.blocking_calls, batch, self._news.set))
        self._at_close.append(self._news.set)

    async def __anext__(self) -> T_co:
        pending = await self._outcome()
        if pending is None:
            await asyncio.to_thread(self._engine.finish)
            await self.aclose()
            raise StopAsyncIteration
        return self._deliver(pending)

    async def _outcome(self) -> PendingItem | None:
        """Wait for the next outcome; return None after the last one."""
        batch, engine = self._engine.batch, self._engine
        if not (self._begun or batch.over or engine.stopped):
            self._channels.start(engine.start)
            self._begun = True
            taking = asyncio.ensure_future(_take(self._items, engine, self._room, self._news))
            _taking.add(taking)
            taking.add_done_callback(_taking.discard)
            self._at_close.append(partial(self._channels.in_loop, taking.cancel))
        while True:
            self._news.clear()
            pending = engine.outcome()
            if pending is not None or batch.over:
                if batch.wants:
                    self._room.set()
                return pending
            await self._news.in_loop.wait()

    async def aclose(self) -> None:
        """Take no more items and cancel the rest; anext() raises StopAsyncIteration.

        The caller closes a generator that makes the items.
        """
        for action in self._at_close:
            action()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


# An event loop keeps no task alive. A pending one must not be garbage: the collector would close
# its coroutine in any thread while the loop cancels it, which ends CPython 3.11 by SIGSEGV.
_taking: set[asyncio.Task[None]] = set()


async def _take(
    items: AsyncIterable[object], engine: BatchEngine, room: asyncio.Event, news: LoopEvent
) -> None:
    """Take items as there is room.

    The results that want them may be dropped meanwhile.
    """
    batch = engine.batch
    until = time.monotonic() + QUICK_S
    try:
        async for item in items:
            engine.add(item)
            if time.monotonic() > until:
                # Items made without awaiting anything must not block the loop.
                await asyncio.sleep(0)
                until = time.monotonic() + QUICK_S
            while not batch.wants:
                room.clear()
                await room.wait()
    except BaseException as error:  # noqa: BLE001
        # The error is raised after the items before it, unless the end has come already.
        batch.end(error)
    else:
        batch.end()
    news.set()


async def _each(items: Iterator[object]) -> AsyncIterator[object]:
    for item in items:
        yield item
