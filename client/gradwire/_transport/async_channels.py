"""Channels of an event loop, and the bound on its concurrent streams.

A stream takes two threads, each of which competes with the event loop for the interpreter, and
starting one takes about as long as a turn of the loop may. So another thread starts them, and calls
beyond the bound wait in order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakSet

import grpc

from gradwire import v1
from gradwire._core.options import Options
from gradwire._transport.channels import (
    EVALUATE_METHOD,
    ClientChannels,
    channel_options,
    channel_pool,
)
from gradwire.errors import CallCancelledError

MAX_STREAMS = 64


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


class AsyncStreams:
    """The streams of one client, for one event loop.

    free     how many more may be open
    running  streams that close() cancels
    """

    def __init__(self) -> None:
        self.free = MAX_STREAMS
        self.running: WeakSet[_Cancellable] = WeakSet()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="gradwire-starter")
        self._closed = False

    @asynccontextmanager
    async def admitted(
        self, count: int, *, timeout_s: float | None, too_late: Callable[[], Exception]
    ) -> AsyncGenerator[None]:
        """Wait until so many streams may be open, which they are until the block ends.

        Raises too_late() after timeout_s, CallCancelledError where the client is closed.
        """
        self._check_open()
        count = min(count, MAX_STREAMS)
        if self._waiting or count > self.free:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._turn(count)
            except TimeoutError as error:
                raise too_late() from error
        else:
            self.free -= count
        try:
            yield
        finally:
            self.free += count
            self._admit()

    def start(self, action: Callable[[], None]) -> None:
        """Have the starting thread do something that does not wait."""
        self._check_open()
        self._starter.submit(action)

    def close(self) -> None:
        """Cancel the streams, and end the calls that wait; admit no other."""
        self._closed = True
        # Submitted work is still done.
        self._starter.shutdown(wait=False)
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(CallCancelledError("the client was closed"))
        self._waiting.clear()
        # Closing a channel waits until the network has taken its outgoing data.
        for stream in tuple(self.running):
            stream.cancel()

    def _check_open(self) -> None:
        if self._closed:
            raise CallCancelledError("the client was closed")

    async def _turn(self, count: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                # Admitted and cancelled at once.
                self.free += count
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self.free):
            count, turn = self._waiting.popleft()
            if not turn.done():
                self.free -= count
                turn.set_result(None)


def open_aio_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    *,
    connect_timeout_s: float | None = None,
) -> grpc.aio.Channel:
    """Open a channel that belongs to the running event loop."""
    options = channel_options(target, connect_timeout_s=connect_timeout_s)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


class AsyncChannel:
    """One channel of an event loop, and its callables.

    evaluate  Evaluate on serialized messages
    """

    def __init__(self, target: str, options: Options) -> None:
        self.channel = open_aio_channel(
            target, options.credentials, connect_timeout_s=options.connect_timeout_s
        )
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            EVALUATE_METHOD
        )


class AsyncClientChannels:
    """The connections of a client of asyncio in one process.

    loop      the event loop they belong to
    unary     for calls of one message each way
    blocking  carries streams
    streams   bounds and starts those of evaluate()
    closing   events that are set when it is closed
    """

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.blocking = ClientChannels(options, waits=False)
        self.streams = AsyncStreams()
        self.unary = channel_pool(
            options, AsyncChannel, close_one=self._start_closing, replicas=self.blocking.replicas
        )
        self.closing: WeakSet[asyncio.Event] = WeakSet()
        self._closing_lines: set[asyncio.Future[None]] = set()

    async def known(self) -> None:
        """Wait for the first list of replicas, or its failure."""
        replicas = self.blocking.replicas
        if replicas is not None and not replicas.addresses:
            await asyncio.to_thread(replicas.wait)

    async def close(self) -> None:
        """Close the channels and cancel their calls."""
        for event in self.closing:
            event.set()
        self.streams.close()
        for line in self.unary.close():
            await line.channel.close()
        await asyncio.to_thread(self.blocking.close)

    def _start_closing(self, line: AsyncChannel) -> None:
        def start() -> None:
            closing = asyncio.ensure_future(line.channel.close())
            self._closing_lines.add(closing)
            closing.add_done_callback(self._closing_lines.discard)

        self.in_loop(start)

    def in_loop(self, action: Callable[[], None]) -> None:
        """Call a function in the loop's thread, from another thread."""
        with contextlib.suppress(RuntimeError):
            # A closed loop has no waiters.
            self.loop.call_soon_threadsafe(action)
