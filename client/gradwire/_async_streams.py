"""How many streams an AsyncClient has at once, and the thread that starts them.

A stream takes two threads, of which each takes a share of the interpreter from the event loop, and
to start one takes about as long as a turn of the loop may. So the loop starts none, and calls
beyond the bound wait in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakSet

from gradwire.errors import CallCancelledError

MAX_STREAMS = 64


class _Cancellable(Protocol):
    def cancel(self) -> None: ...


class AsyncStreams:
    """The streams of one client, for one event loop.

    free     how many more may be open
    running  those that close() cancels
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
        # What was submitted is done yet.
        self._starter.shutdown(wait=False)
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(CallCancelledError("the client was closed"))
        self._waiting.clear()
        # grpc, when it closes a channel, waits until the network has taken what is on its way.
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
