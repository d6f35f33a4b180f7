"""Process that makes the calls of a load test and reports them.

It communicates with the process that started it over a pipe: it receives what makes a client, and
then a Phase, sends None when it is ready, receives the time from which calls count, sends a Batch
at intervals, the last one with the usage of the process, and receives the next Phase. The end of
the pipe ends the process.

Times are on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import selectors
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import numpy as np

from gradwire._core.retries import RetryPolicy, is_retryable
from gradwire._transport.aio import open_aio_channel
from gradwire._transport.streams import StreamRun
from gradwire.async_client import AsyncClient
from gradwire.errors import GradwireError
from gradwire.loadtest.scenarios import Flow, Judge
from gradwire.tensors import Array

# A load test counts refusals, which retries would hide.
ONCE = RetryPolicy(max_attempts=1)


class Outcome(NamedTuple):
    """How a call ended.

    status     of gRPC; WRONG_RESULT for wrong bits
    reason     of gradwire; BY_CALLER for calls that the scenario cancels
    retryable  whether the SDK would have tried again
    """

    status: str
    reason: str = ""
    retryable: bool = False


OK = Outcome("OK")
WRONG = Outcome("WRONG_RESULT")
CANCELLED = Outcome("CANCELLED", "BY_CALLER")


class Maker:
    """Makes the calls of one flow.

    timeout_s  limit of calls that are not hurried
    """

    def __init__(self, flow: Flow, client: AsyncClient, *, timeout_s: float) -> None:
        self._flow = flow
        self._client = client
        self._timeout_s = flow.within_s if flow.manner == "hurried" else timeout_s
        self._input = flow.what.input()
        self._judge = Judge(flow.what)

    async def __call__(self) -> Outcome:
        """Make a call; return its outcome, whether it succeeds or fails."""
        try:
            result = await self._result()
        except GradwireError as error:
            status = error.status or error.default_reason or type(error).__name__
            retryable = is_retryable(error, streamed=self._flow.what.is_streamed)
            return Outcome(status, error.reason, retryable)
        except Exception as error:  # noqa: BLE001 - local faults are counted like others
            return Outcome(type(error).__name__, str(error)[:80])
        if result is None:
            return CANCELLED
        return OK if self._judge.is_right(result) else WRONG

    async def _result(self) -> Array | None:
        """Return the result; None if the caller has cancelled the call."""
        flow, what = self._flow, self._flow.what
        if flow.manner == "slow":
            return await self._slow_result()
        call = self._client.evaluate(
            what.operator, self._input, output_shape=what.received, timeout_s=self._timeout_s
        )
        limit_s = random.uniform(0, flow.within_s) if flow.manner == "cancelled" else None  # noqa: S311
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError as error:
            # An error of the service may also be a TimeoutError.
            if isinstance(error, GradwireError):
                raise
            return None

    async def _slow_result(self) -> Array:
        """Evaluate by a stream, with a pause before each received chunk."""
        what = self._flow.what
        channels = self._client._channels()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        evaluation = channels.blocking.evaluation(
            op=what.operator,
            array=self._input,
            output_shape=what.received,
            out=None,
            timeout_s=self._timeout_s,
        )
        transfer: Any = evaluation.shares.whole
        store = transfer.store

        def store_slowly(offset: int, data: bytes | memoryview) -> None:
            # grpc reads no further meanwhile.
            time.sleep(self._flow.within_s)
            store(offset, data)

        transfer.store = store_slowly
        await StreamRun(evaluation, channels.blocking, channels).run()
        return evaluation.result()


# Seconds on a clock shared by all local processes.
now = time.monotonic
REPORT_S = 0.25
# Pause of a closed loop's caller after an unanswered call, which fails at once.
_PAUSE_S = 0.25
# Makes a client, of (connections=, retry=); it can be sent to another process, unlike credentials.
Connect = Callable[..., AsyncClient]


@dataclass(frozen=True)
class LoadSettings:
    """Settings of a load test.

    duration_s   how long counted calls are due
    warm_up_s    how long calls are made before they count
    timeout_s    seconds that a call may take
    rate         calls per second; None for those of the scenarios
    callers      of a closed loop; None for those of the scenarios
    connections  that a process opens at most
    processes    that make the calls
    """

    duration_s: float
    warm_up_s: float
    timeout_s: float
    rate: float | None = None
    callers: int | None = None
    connections: int = 2
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Phase:
    """Orders for the process of a number."""

    flows: tuple[Flow, ...]
    settings: LoadSettings
    number: int = 0


@dataclass(frozen=True)
class GeneratorUsage:
    """One process that made calls.

    cpu_cores  that it kept busy on average; 1 is all that it can
    late_*     delays of calls of open loops, from due to made
    """

    cpu_cores: float
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float


class Batch(NamedTuple):
    """Calls that ended since the last batch.

    ended  float64[n, 3]: times at which calls were due, made and over, by the index of their flow
    usage  of the process; None until its last batch
    """

    ended: dict[tuple[int, Outcome], Array]
    usage: GeneratorUsage | None


def percentile(times: Array, percent: float) -> float:
    """Return the least time that a percentage of times does not exceed.

    It is 0 without times.
    """
    return float(np.percentile(times, percent, method="inverted_cdf")) if len(times) else 0.0


def percentiles_ms(times: Array, *percents: float) -> list[float]:
    """Return percentiles in milliseconds."""
    return [round(percentile(times, percent) * 1e3, 3) for percent in percents]


def main() -> None:
    """Run phases that come through the pipe whose descriptor is the argument."""
    # SIGTERM of some service managers reaches every process of a group; the leading process
    # decides.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe = Pipe(int(sys.argv[1]))
    # The leading process may be gone before this one is ready.
    with (
        contextlib.suppress(OSError, EOFError),
        asyncio.Runner(loop_factory=_precise_loop) as runner,
    ):
        runner.run(_run(pipe, pipe.recv()))


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with timers finer than milliseconds.

    epoll rounds its timers up to milliseconds.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(pipe: Pipe, connect: Connect) -> None:
    # When the last channel is freed, in any thread, grpc closes the socket by which it wakes the
    # event loop, and select() may fail on that socket. This channel stays, and never connects.
    _staying = open_aio_channel("localhost", None)
    while True:
        phase: Phase = await asyncio.to_thread(pipe.recv)
        async with connect(connections=phase.settings.connections, retry=ONCE) as client:
            load = _Load(phase, client, pipe)
            pipe.send(None)
            await load.run(await asyncio.to_thread(pipe.recv))


class _Load:
    """A phase in progress; calls count from `begin` on."""

    def __init__(self, phase: Phase, client: AsyncClient, pipe: Pipe) -> None:
        self._phase = phase
        self._begin = 0.0
        self._pipe = pipe
        self._ended: dict[tuple[int, Outcome], list[tuple[float, float, float]]] = defaultdict(list)
        self._late: list[float] = []
        self._makers = [
            Maker(flow, client, timeout_s=phase.settings.timeout_s) for flow in phase.flows
        ]

    async def run(self, begin: float) -> None:
        """Make all calls and wait for their ends."""
        self._begin = begin
        telling = asyncio.create_task(self._tell())
        async with asyncio.TaskGroup() as group:
            for index, flow in enumerate(self._phase.flows):
                if flow.is_open:
                    group.create_task(self._open_loop(index, flow, group))
                for _ in range(self._phase.number, flow.callers, self._phase.settings.processes):
                    group.create_task(self._closed_loop(index))
            await asyncio.sleep(max(0.0, begin - now()))
            used_s = time.process_time()
            await asyncio.sleep(self._phase.settings.duration_s)
            cores = (time.process_time() - used_s) / self._phase.settings.duration_s
        telling.cancel()
        late = percentiles_ms(np.array(self._late), 50, 99, 100)
        self._send(GeneratorUsage(round(cores, 3), *late))

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                self._send()
            except OSError:
                # The leading process has been killed.
                os._exit(0)

    def _send(self, usage: GeneratorUsage | None = None) -> None:
        ended = {key: np.array(times) for key, times in self._ended.items()}
        self._ended.clear()
        self._pipe.send(Batch(ended, usage))

    async def _open_loop(self, index: int, flow: Flow, group: asyncio.TaskGroup) -> None:
        for due in dues(flow, self._phase, self._begin):
            await asyncio.sleep(max(0.0, due - now()))
            group.create_task(self._call(index, due))

    async def _closed_loop(self, index: int) -> None:
        await asyncio.sleep(max(0.0, self._begin - self._phase.settings.warm_up_s - now()))
        end = self._begin + self._phase.settings.duration_s
        while (due := now()) < end:
            outcome = await self._call(index, due)
            # gRPC found no server or lost it; a server of this service gives a reason.
            if outcome.status == "UNAVAILABLE" and not outcome.reason:
                await asyncio.sleep(min(_PAUSE_S, max(0.0, end - now())))

    async def _call(self, index: int, due: float) -> Outcome:
        made = now()
        outcome = await self._makers[index]()
        if self._begin <= due < self._begin + self._phase.settings.duration_s:
            self._ended[index, outcome].append((due, made, now()))
            if self._phase.flows[index].is_open:
                self._late.append(made - due)
        return outcome


def dues(flow: Flow, phase: Phase, begin: float) -> Iterator[float]:
    """Yield the due times of this process's calls of an open loop.

    The processes take turns.
    """
    start = begin - phase.settings.warm_up_s
    for number in count(phase.number, phase.settings.processes):
        due = start + number // flow.burst * flow.burst / flow.rate
        if due >= begin + phase.settings.duration_s:
            return
        yield due
