"""Phases of calls, and metrics of calls and of the server.

Calls record their metrics; those of the server are sampled. All runs on the event loop, without
locks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gradwire_server.observability.cells import Cells, place
from gradwire_server.observability.definitions import (
    DTYPE,
    ERRORS,
    IN_FLIGHT,
    ITEMS,
    LAG,
    METHOD,
    OPERATOR,
    PHASE_DURATION,
    PHASES,
    RECEIVED,
    REQUEST_DURATION,
    SENT,
    STATUS_LABEL,
    STEP,
    Phase,
)


class Phases:
    """Seconds that a call has spent in each phase.

    receive  reading and checking the request
    queue    waiting for the server's memory, threads and tables
    compute  computing
    send     encoding and writing the reply

    Phases of a stream overlap: their sum may exceed the call's duration.

    bounds   first begin and last end of each phase, by time.perf_counter; absent if it never began
    at_once  number of calls now in each phase, if counted
    """

    def __init__(self, at_once: MutableMapping[Phase, int] | None = None) -> None:
        self.seconds: dict[Phase, float] = {
            "receive": 0.0,
            "queue": 0.0,
            "compute": 0.0,
            "send": 0.0,
        }
        self.bounds: dict[Phase, tuple[float, float]] = {}
        self.at_once = dict.fromkeys(PHASES, 0) if at_once is None else at_once

    def told(self) -> str:
        """Format them as the header Server-Timing, in ms: "receive;dur=0.042, ..."."""
        receive, queue, compute, send = self.seconds.values()
        return (
            f"receive;dur={1e3 * receive:.3f}, queue;dur={1e3 * queue:.3f}, "
            f"compute;dur={1e3 * compute:.3f}, send;dur={1e3 * send:.3f}"
        )

    def note(self, phase: Phase, began: float, ended: float) -> None:
        """Add a past interval of a phase, by time.perf_counter; leaving `at_once` unchanged."""
        self.seconds[phase] += ended - began
        if phase in self.bounds:
            began = self.bounds[phase][0]
        self.bounds[phase] = began, ended

    def spending(self, phase: Phase) -> _Spending:
        """Add the duration of the block to a phase."""
        return _Spending(self, phase)


class _Spending:
    """One interval of a phase.

    A class, since a generator takes several times as long.
    """

    __slots__ = ("_began", "_phase", "_phases")

    def __init__(self, phases: Phases, phase: Phase) -> None:
        self._phases = phases
        self._phase: Phase = phase

    def __enter__(self) -> None:
        self._phases.at_once[self._phase] += 1
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        ended = time.perf_counter()
        phases, phase = self._phases, self._phase
        phases.note(phase, self._began, ended)
        phases.at_once[phase] -= 1


class Observed(Protocol):
    """A call, as metrics and traces read it.

    operator     empty until it is known, and if there is none
    dtype        None likewise
    traceparent  trace and parent span, in the form of W3C Trace Context
    """

    method: str
    operator: str
    dtype: np.dtype[Any] | None
    received_bytes: int
    sent_bytes: int
    phases: Phases
    traceparent: str

    @property
    def request_id(self) -> str:
        """Request id of the caller, or a generated one."""
        ...

    @property
    def peer(self) -> str:
        """Address of the caller, in grpc's form."""
        ...

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the call, without binary values."""
        ...


class ObservedError(Protocol):
    """An error as a caller sees it."""

    @property
    def status(self) -> str:
        """Name of its gRPC status code."""
        ...

    @property
    def reason_name(self) -> str:
        """Its ErrorReason without the prefix of the enum."""
        ...

    @property
    def message(self) -> str:
        """Human-readable text."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """Metadata of the error."""
        ...

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry may succeed.

        None if the error sets none.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Series:
    """First cells of the time series of one kind of call."""

    in_flight: int
    duration: int
    phases: tuple[tuple[Phase, int], ...]
    received: int
    sent: int


_MOST = len(METHOD.values) * len(OPERATOR.values) * len(DTYPE.values) * len(STATUS_LABEL.values)


class _Tracer(Protocol):
    """Interface of otlp.Tracer, which needs OpenTelemetry."""

    def begin(self, call: Observed) -> Any: ...
    def end(self, span: Any, call: Observed, *, status: str, reason: str) -> None: ...
    def close(self) -> None: ...


class Observer:
    """Counter of calls, which passes them to a tracer if present.

    Used from one event loop.
    """

    def __init__(self, cells: Cells | None = None, tracer: _Tracer | None = None) -> None:
        self.cells = cells
        self.tracer = tracer
        self._in_flight = {method: place(IN_FLIGHT, method) for method in METHOD.values}
        self._series: dict[tuple[str, str, np.dtype[Any] | None, str], _Series] = {}
        self._step = place(STEP)

    def begin(self, call: Observed) -> object:
        """Record the start of a call; return the value that `end` needs."""
        if self.cells is not None:
            self.cells.values[self._cell_in_flight(call.method)] += 1.0
        return None if self.tracer is None else self.tracer.begin(call)

    def end(
        self,
        begun: object,
        call: Observed,
        *,
        status: str,
        duration_s: float,
        failed: ObservedError | None = None,
    ) -> None:
        """Record a call's status, and its error if it has one."""
        if self.cells is not None:
            self._count(self.cells, call, status, duration_s)
            if failed is not None:
                _count_error(self.cells, call, failed)
        if self.tracer is not None:
            reason = "" if failed is None else failed.reason_name
            self.tracer.end(begun, call, status=status, reason=reason)

    def items(
        self,
        call: Observed,
        evaluated: tuple[str, np.dtype[Any]] | None,
        *,
        status: str,
        count: int = 1,
        failed: ObservedError | None = None,
    ) -> None:
        """Record answers to equal items of a call.

        Their error is recorded if they have one.

        evaluated  their operator and data type; None if unknown
        """
        if self.cells is not None:
            operator, dtype = ("", "") if evaluated is None else (evaluated[0], evaluated[1].name)
            self.cells.values[place(ITEMS, operator, dtype, status)] += count
            if failed is not None:
                _count_error(self.cells, call, failed)

    def step(self, nbytes: int) -> None:
        """Record a step of a stream.

        nbytes is the number of bytes it read and wrote.
        """
        if self.cells is not None:
            self.cells.observe(self._step, STEP.buckets, nbytes)

    def _count(self, cells: Cells, call: Observed, status: str, duration_s: float) -> None:
        key = (call.method, call.operator, call.dtype, status)
        series = self._series.get(key) or self._find(key)
        cells.values[series.in_flight] -= 1.0
        cells.observe(series.duration, REQUEST_DURATION.buckets, duration_s)
        spent = call.phases.seconds
        for phase, histogram in series.phases:
            seconds = spent[phase]
            if seconds:
                cells.observe(histogram, PHASE_DURATION.buckets, seconds)
        if call.received_bytes:
            cells.observe(series.received, RECEIVED.buckets, call.received_bytes)
        if call.sent_bytes:
            cells.observe(series.sent, SENT.buckets, call.sent_bytes)

    def _cell_in_flight(self, method: str) -> int:
        return self._in_flight.get(method, self._in_flight["unknown"])

    def _find(self, key: tuple[str, str, np.dtype[Any] | None, str]) -> _Series:
        method, operator, dtype, status = key
        dtype_name = "" if dtype is None else dtype.name
        series = _Series(
            in_flight=self._cell_in_flight(method),
            duration=place(REQUEST_DURATION, method, operator, dtype_name, status),
            phases=tuple((phase, place(PHASE_DURATION, phase, operator)) for phase in PHASES),
            received=place(RECEIVED, method),
            sent=place(SENT, method),
        )
        if len(self._series) < _MOST:
            self._series[key] = series
        return series


def _count_error(cells: Cells, call: Observed, failed: ObservedError) -> None:
    """Count an error and add it to the notes."""
    reason, limit = failed.reason_name, failed.facts.get("limit", "")
    cells.values[place(ERRORS, call.method, reason, limit)] += 1.0
    cells.notes.error(
        method=call.method,
        operator=call.operator,
        status=failed.status,
        reason=reason,
        message=failed.message,
        request_id=failed.facts.get("request_id", call.request_id),
        # Retry delays differ per caller, so such errors are grouped by limit.
        alike="" if failed.retry_after_s is None else limit or reason,
    )


_EVERY_S = 0.25


class Sampler:
    """Periodic writer of readings into cells.

    It writes four times a second and at the end. Belongs to one event loop.

    read  returns values by the cell they are written to
    """

    def __init__(self, cells: Cells) -> None:
        self.read: Callable[[], Mapping[int, float]] = dict
        self._cells = cells
        self._lag = place(LAG)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sample once more and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.sample()

    def sample(self) -> None:
        """Write every reading now."""
        for cell, value in self.read().items():
            self._cells.values[cell] = value

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self._cells.observe(self._lag, LAG.buckets, max(0.0, loop.time() - due))
            self.sample()
