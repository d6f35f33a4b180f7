"""Process that makes the calls of a load test and reports them.

It communicates with the process that started it over a pipe: it receives a Phase, sends READY,
receives the time from which calls count, sends a Batch at intervals, the last one with `over` set,
and receives the next Phase. None in the midst of a phase ends it at once; the end of the pipe ends
the process.

Times are on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import selectors
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire._core.retries import RetryPolicy, is_retryable
from gradwire._transport.aio import open_aio_channel
from gradwire._transport.streams import StreamRun
from gradwire.async_client import AsyncClient
from gradwire.errors import CallCancelledError, DeadlineExceededError, GradwireError
from gradwire.loadtest.scenarios import Flow, Judge, Problem

# A load test counts refusals, which retries would hide.
ONCE = RetryPolicy(max_attempts=1)
# gRPC statuses of errors that the SDK raises by itself.
_LOCAL: dict[type[GradwireError], str] = {
    DeadlineExceededError: "DEADLINE_EXCEEDED",
    CallCancelledError: "CANCELLED",
}
# Times of calls, in seconds.
Times = NDArray[np.float64]


class Outcome(NamedTuple):
    """How a call ended.

    status     of gRPC; WRONG_RESULT for wrong bits
    reason     of gradwire; BY_CALLER and BY_USER for cancelled calls
    retryable  whether the SDK would have tried again
    """

    status: str
    reason: str = ""
    retryable: bool = False

    @property
    def is_unanswered(self) -> bool:
        """Whether no server took part in the call.

        gRPC found no server or lost it; a server of this service gives a reason.
        """
        return self.status == "UNAVAILABLE" and not self.reason


OK = Outcome("OK")
WRONG = Outcome("WRONG_RESULT")
CANCELLED = Outcome("CANCELLED", "BY_CALLER")
# Calls in flight when the user ends the test; they do not count.
STOPPED = Outcome("CANCELLED", "BY_USER")


class Maker:
    """Makes the calls of one flow.

    timeout_s  limit of calls that are not hurried
    """

    def __init__(self, flow: Flow, client: AsyncClient, *, timeout_s: float, seed: int) -> None:
        self._flow = flow
        self._client = client
        self._timeout_s = flow.within_s if flow.manner == "hurried" else timeout_s
        self._chance = random.Random(seed)  # noqa: S311 - nothing secret
        self._input = flow.what.input()
        self._judge = Judge(flow.what)

    async def __call__(self) -> Outcome:
        """Make a call; return its outcome, whether it succeeds or fails."""
        try:
            result = await self._result()
        except GradwireError as error:
            status = error.status or _LOCAL.get(type(error), type(error).__name__)
            retryable = is_retryable(error, streamed=self._flow.what.is_streamed)
            return Outcome(status, error.reason, retryable)
        except Exception as error:  # noqa: BLE001 - local faults are counted like others
            return Outcome(type(error).__name__, str(error)[:80])
        if result is None:
            return CANCELLED
        return OK if self._judge.is_right(result) else WRONG

    async def _result(self) -> NDArray[Any] | None:
        """Return the result; None if the caller has cancelled the call."""
        flow, what = self._flow, self._flow.what
        if flow.manner == "slow":
            return await evaluate_slowly(
                self._client, what, self._input, pause_s=flow.within_s, timeout_s=self._timeout_s
            )
        if flow.manner == "many":
            item = (what.operator, self._input, what.received)
            results = self._client.evaluate_many([item] * flow.items, timeout_s=self._timeout_s)
            came = [result async for result in results]
            # The result of one of the items: a wrong one if there is any.
            return next((one for one in came if not self._judge.is_right(one)), came[-1])
        call = self._client.evaluate(
            what.operator, self._input, output_shape=what.received, timeout_s=self._timeout_s
        )
        if flow.manner != "cancelled":
            return await call
        try:
            async with asyncio.timeout(self._chance.uniform(0, flow.within_s)):
                return await call
        except TimeoutError as error:
            # An error of the service may also be a TimeoutError.
            if isinstance(error, GradwireError):
                raise
            return None


def now() -> float:
    """Return the seconds on a clock shared by all local processes."""
    return time.monotonic()


async def evaluate_slowly(
    client: AsyncClient,
    problem: Problem,
    array: NDArray[Any],
    *,
    pause_s: float,
    timeout_s: float,
) -> NDArray[Any]:
    """Evaluate by a stream, with a pause before each received chunk."""
    channels = client._channels()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    evaluation = channels.blocking.evaluation(
        problem.operator, array, output_shape=problem.received, out=None, timeout_s=timeout_s
    )
    whole = evaluation.shares.whole
    if whole is not None:
        store = whole.store

        def slowly(offset: int, data: bytes | memoryview) -> None:
            # grpc reads no further meanwhile.
            time.sleep(pause_s)
            store(offset, data)

        whole.store = slowly  # type: ignore[method-assign]
    await StreamRun(evaluation, channels.blocking, channels).run()
    return evaluation.result()


REPORT_S = 0.25
# Pauses of a closed loop's caller after unanswered calls: from the first to the second value,
# doubled each time. Calls without a connection fail at once.
_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 0.5
READY = "ready"
# Exceptions that end a load test from outside.
ENDING = (signal.SIGINT, signal.SIGTERM)


# Makes a client, of (connections=, retry=); it can be sent to another process, unlike credentials.
Connect = Callable[..., AsyncClient]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Orders for a process.

    warm_up_s               how long calls are made before they count
    duration_s              how long counted calls are due
    timeout_s               seconds that a call may take
    connections             that a process opens at most
    number, processes       which of how many processes this one is
    """

    flows: tuple[Flow, ...]
    warm_up_s: float
    duration_s: float
    timeout_s: float
    connections: int
    number: int = 0
    processes: int = 1


class Batch(NamedTuple):
    """Calls that ended since the last batch.

    They are grouped by the flow's index in its phase.

    ended    float64[n, 3]: times at which calls were due, made and over
    cpu_s    processor time that the process has had so far
    time     of that
    """

    number: int
    ended: dict[tuple[int, Outcome], Times]
    cpu_s: float
    time: float
    over: bool


def main(pipe: Pipe, connect: Connect) -> None:
    """Run phases until the pipe ends."""
    # Ctrl-C reaches every process of a terminal, and SIGTERM of some service managers every one of
    # a group; the leading process decides.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    # The leading process may be gone before READY is sent.
    with (
        contextlib.suppress(BrokenPipeError),
        asyncio.Runner(loop_factory=_precise_loop) as runner,
    ):
        runner.run(_run(pipe, connect))


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with timers finer than milliseconds.

    epoll rounds its timers up to milliseconds.
    """
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
    """A phase in progress; calls count from `begin` on."""

    def __init__(self, phase: Phase, client: AsyncClient, pipe: Pipe) -> None:
        self._phase = phase
        self._begin = 0.0
        self._pipe = pipe
        self._ended: dict[tuple[int, Outcome], list[tuple[float, float, float]]] = defaultdict(list)
        self._makers = [
            Maker(flow, client, timeout_s=phase.timeout_s, seed=phase.number)
            for flow in phase.flows
        ]
        self._calls: set[asyncio.Task[Outcome]] = set()

    async def run(
        self, begin: Phase | float | None, orders: asyncio.Queue[Phase | float | None]
    ) -> None:
        """Make all calls and wait for their ends; stop on order."""
        if not isinstance(begin, float):
            self._send(over=True)
            return
        self._begin = begin
        telling = asyncio.create_task(self._tell())
        making = asyncio.create_task(self._make())
        order = asyncio.create_task(orders.get())
        await asyncio.wait({making, order}, return_when=asyncio.FIRST_COMPLETED)
        for task in (order, making, telling, *self._calls):
            task.cancel()
        ends: list[object] = await asyncio.gather(making, *self._calls, return_exceptions=True)
        self._send(over=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._send(over=False)

    def _send(self, *, over: bool) -> None:
        ended = {key: np.array(times) for key, times in self._ended.items()}
        self._ended.clear()
        self._pipe.send(Batch(self._phase.number, ended, time.process_time(), now(), over))

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
        outcome = STOPPED
        try:
            outcome = await self._makers[index]()
        finally:
            if self._begin <= due < self._begin + self._phase.duration_s:
                self._ended[index, outcome].append((due, made, now()))
        return outcome


def share(callers: int, phase: Phase) -> int:
    """Return the number of callers that are this process's share."""
    return callers // phase.processes + (phase.number < callers % phase.processes)


def dues(flow: Flow, phase: Phase, begin: float) -> Iterator[float]:
    """Yield the due times of this process's calls of an open loop.

    The processes take turns.
    """
    start = begin - phase.warm_up_s
    for number in count(phase.number, phase.processes):
        due = start + number // flow.burst * flow.burst / flow.rate
        if due >= begin + phase.duration_s:
            return
        yield due
