"""A process that makes calls and tells what became of them.

It speaks with the process that started it over a pipe: takes a Phase, sends READY, takes the time
at which calls begin to count, sends a Batch every so often, the last one with `over` set, and takes
the next Phase. Told `None` in the midst of one it ends that at once; it ends itself when the pipe
does.

Calls are due, and end, on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire._channel import open_aio_channel
from gradwire.async_client import AsyncClient
from gradwire.bench.calls import ONCE, STOPPED, Maker, Outcome, now
from gradwire.bench.scenarios import Flow
from gradwire.retries import RetryPolicy

REPORT_S: Final = 0.25
# What a caller of a closed loop waits after a call that no server answered: from the first to the
# second, twice as long each time. Calls without a connection fail at once.
_FIRST_PAUSE_S: Final = 0.01
_LAST_PAUSE_S: Final = 0.5
READY: Final = "ready"
# What ends a load test from outside.
ENDING: Final = (signal.SIGINT, signal.SIGTERM)
# Times of a call, in seconds: when it was due, made, over.
Times = NDArray[np.float64]


class Connect(Protocol):
    """Makes a client; travels to another process, as credentials do not."""

    def __call__(self, *, connections: int, retry: RetryPolicy) -> AsyncClient:
        """Make one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a process is to do.

    warm_up_s               how long calls are made before they count
    duration_s              how long calls are due that do
    timeout_s               seconds that a call may take
    connections             that a process opens at most
    number, processes       which of how many processes this one is
    """

    flows: tuple[Flow, ...]
    warm_up_s: float
    duration_s: float
    timeout_s: float
    connections: int
    number: int
    processes: int


@dataclass(slots=True)
class Batch:
    """What came of calls since the last one, by the flow's place in its phase.

    made     times at which calls were made that count: due and made
    ended    due, made and over, of those that have ended
    cpu_s    processor time that the process has had so far
    time     of that
    """

    number: int
    made: dict[int, Times] = field(default_factory=dict[int, Times])
    ended: dict[tuple[int, Outcome], Times] = field(
        default_factory=dict[tuple[int, Outcome], Times]
    )
    cpu_s: float = 0.0
    time: float = 0.0
    over: bool = False


class _Record:
    """What has not been told yet."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.made: dict[int, list[tuple[float, float]]] = {}
        self.ended: dict[tuple[int, Outcome], list[tuple[float, float, float]]] = {}

    def batch(self, *, over: bool) -> Batch:
        """Return it, and forget it."""
        made = {flow: np.array(times) for flow, times in self.made.items()}
        ended = {key: np.array(times) for key, times in self.ended.items()}
        self.made, self.ended = {}, {}
        return Batch(self._number, made, ended, time.process_time(), now(), over)


def main(pipe: Pipe, connect: Connect) -> None:
    """Run phases until the pipe ends."""
    # Ctrl-C reaches every process of a terminal, and SIGTERM of some service managers every one of
    # a group; the one that leads decides.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    # Who leads may be gone before it is told that this one is ready.
    with (
        contextlib.suppress(BrokenPipeError),
        asyncio.Runner(loop_factory=_precise_loop) as runner,
    ):
        runner.run(_run(pipe, connect))


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose timers are not rounded up to milliseconds, as those of epoll are."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(pipe: Pipe, connect: Connect) -> None:
    orders: asyncio.Queue[Phase | float | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(orders.put_nowait, pipe.recv())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    # When the last channel is freed, in any thread, grpc closes the socket by which it wakes the
    # event loop, and select() may fail on that socket. This channel stays, and never connects.
    _staying = open_aio_channel("localhost", None)
    while True:
        phase = await orders.get()
        if not isinstance(phase, Phase):
            continue
        async with connect(connections=phase.connections, retry=ONCE) as client:
            load = _Load(phase, client, pipe)
            pipe.send(READY)
            await load.run(await orders.get(), orders)


class _Load:
    """A phase under way.

    begin  when calls begin to count
    """

    def __init__(self, phase: Phase, client: AsyncClient, pipe: Pipe) -> None:
        self._phase = phase
        self._begin = 0.0
        self._pipe = pipe
        self._record = _Record(phase.number)
        self._makers = [
            Maker(flow, client, timeout_s=phase.timeout_s, seed=phase.number)
            for flow in phase.flows
        ]
        self._calls: set[asyncio.Task[Outcome]] = set()

    async def run(
        self, begin: Phase | float | None, orders: asyncio.Queue[Phase | float | None]
    ) -> None:
        """Make all calls and wait for their ends; stop both when told to."""
        if not isinstance(begin, float):
            self._pipe.send(self._record.batch(over=True))
            return
        self._begin = begin
        telling = asyncio.create_task(self._tell())
        making = asyncio.create_task(self._make())
        order = asyncio.create_task(orders.get())
        await asyncio.wait({making, order}, return_when=asyncio.FIRST_COMPLETED)
        for task in (order, making, telling, *self._calls):
            task.cancel()
        ends: list[object] = await asyncio.gather(making, *self._calls, return_exceptions=True)
        self._pipe.send(self._record.batch(over=True))
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._pipe.send(self._record.batch(over=False))

    async def _make(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index, flow in enumerate(self._phase.flows):
                if flow.is_open:
                    group.create_task(self._open_loop(index, flow))
                    continue
                for _ in range(share(flow.callers, self._phase)):
                    group.create_task(self._closed_loop(index))
        while self._calls:
            await asyncio.wait(self._calls)

    async def _open_loop(self, index: int, flow: Flow) -> None:
        for due in dues(flow, self._phase, self._begin):
            wait_s = due - now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            call = asyncio.create_task(self._call(index, due))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _closed_loop(self, index: int) -> None:
        await asyncio.sleep(max(0.0, self._begin - self._phase.warm_up_s - now()))
        end = self._begin + self._phase.duration_s
        pause_s = _FIRST_PAUSE_S
        while (due := now()) < end:
            if not (await self._call(index, due)).is_unanswered:
                pause_s = _FIRST_PAUSE_S
                continue
            await asyncio.sleep(min(pause_s, max(0.0, end - now())))
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _call(self, index: int, due: float) -> Outcome:
        made = now()
        counts = self._begin <= due < self._begin + self._phase.duration_s
        if counts:
            self._record.made.setdefault(index, []).append((due, made))
        outcome = STOPPED
        try:
            outcome = await self._makers[index]()
        finally:
            if counts:
                times = self._record.ended.setdefault((index, outcome), [])
                times.append((due, made, now()))
        return outcome


def share(callers: int, phase: Phase) -> int:
    """Return how many of the callers are this process's."""
    return callers // phase.processes + (phase.number < callers % phase.processes)


def dues(flow: Flow, phase: Phase, begin: float) -> Iterator[float]:
    """Yield when this process's calls of an open loop are due; processes take turns."""
    start = begin - phase.warm_up_s
    for number in count(phase.number, phase.processes):
        due = start + number // flow.burst * flow.burst / flow.rate
        if due >= begin + phase.duration_s:
            return
        yield due
