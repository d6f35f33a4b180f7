"""Calls without sockets: a service's handlers on an event loop with a virtual clock."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import grpc

from gradwire_server.backends import NumpyCpu
from gradwire_server.config.settings import Settings
from gradwire_server.engine import Preparer, TableCache
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.service_context import BackendInUse, ServiceContext
from gradwire_server.scheduling.admission import Admission, InlineWork
from gradwire_server.server import device_watch

T = TypeVar("T")

# Far more turns of the event loop than any of these tests takes.
_MOST_TURNS = 100_000


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the clock jumps instead."""

    now = 1000.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.turns += 1
        if timeout is None or self.turns > _MOST_TURNS:
            raise AssertionError("every task waits, and nothing is due or everything at once")
        self.now += max(0.0, timeout)
        return super().select(0)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop with a virtual clock; waiting takes no time."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


class _Here(Executor):
    """Runs work at once, in the thread that submits it."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            done.set_exception(error)
        return done


def service(**settings: Any) -> ServiceContext:
    """Return a service that computes with NumPy, in the running loop's thread."""
    made = Settings(**settings)
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    ready.set()
    pool: Any = _Here()
    return ServiceContext(
        settings=made,
        in_use=BackendInUse(NumpyCpu(), ""),
        preparer=Preparer(made.limits, TableCache(max_entries=1 << 16)),
        admission=Admission(
            max_memory_bytes=made.max_memory_bytes,
            max_streams=made.max_streams,
            clock=loop.time,
        ),
        pool=pool,
        active=ActiveCalls(),
        device=device_watch(made),
        ready=ready,
        draining=asyncio.Event(),
        inline=InlineWork(0, most_s=0),
    )


class VirtualCall:
    """A call as a handler sees it. The caller writes by `send`, and reads by `receive`.

    most  messages that the server may write before the caller reads one
    code  the call's status once it has ended; None for OK
    reads number of messages the server has read
    """

    def __init__(self, *, peer: str = "ipv4:127.0.0.1:1", most: int = 1) -> None:
        self._peer = peer
        self._most = most
        self._incoming: deque[Any] = deque()
        self._outgoing: deque[Any] = deque()
        self._changed = asyncio.Event()
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.reads = 0

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def send(self, *messages: Any) -> None:
        self._incoming.extend(messages)
        self._changed.set()

    def half_close(self) -> None:
        self.send(grpc.aio.EOF)

    async def receive(self) -> Any:
        await self._until(lambda: self._outgoing)
        self._changed.set()
        return self._outgoing.popleft()

    async def read(self) -> Any:
        await self._until(lambda: self._incoming)
        self.reads += 1
        message = self._incoming[0]
        if message is not grpc.aio.EOF:
            self._incoming.popleft()
        return message

    async def write(self, message: Any) -> None:
        await self._until(lambda: len(self._outgoing) < self._most)
        self._outgoing.append(message)
        self._changed.set()

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> None: ...

    def time_remaining(self) -> None: ...

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, _metadata: object) -> None: ...

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


class Nobody:
    """A caller without a certificate or a deadline."""

    def peer(self) -> str:
        return "nobody:1"

    def peer_identities(self) -> None:
        return

    def time_remaining(self) -> None:
        return
