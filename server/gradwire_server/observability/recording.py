"""Phases and metrics of calls, recorded on the event loop without locks."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np

from gradwire.tensors import DTYPES
from gradwire_server.observability.cells import Cells, place
from gradwire_server.observability.definitions import (
    ERRORS,
    IN_FLIGHT,
    ITEMS,
    METHOD,
    PHASE_DURATION,
    PHASES,
    RECEIVED,
    REQUEST_DURATION,
    SENT,
    STEP,
    Phase,
)

# The property `name` of a dtype takes longer than a look-up.
_DTYPES = {dtype: dtype.name for dtype in DTYPES.values()}


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


class _Error(Protocol):
    """An error as a caller sees it.

    status         name of its gRPC status code
    reason_name    its ErrorReason without the prefix of the enum
    facts          metadata of the error
    retry_after_s  seconds after which a retry may succeed; None if the error sets none
    """

    @property
    def status(self) -> str: ...
    @property
    def reason_name(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, str]: ...
    @property
    def retry_after_s(self) -> float | None: ...


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

    def begin(self, call: Observed) -> object:
        """Record the start of a call; return the value that `end` needs."""
        if self.cells is not None:
            self.cells.values[place(IN_FLIGHT, _known(call.method))] += 1.0
        return None if self.tracer is None else self.tracer.begin(call)

    def end(
        self,
        begun: object,
        call: Observed,
        *,
        status: str,
        duration_s: float,
        failed: _Error | None = None,
    ) -> None:
        """Record a call's status, and its error if it has one."""
        if self.cells is not None:
            _count(self.cells, call, status, duration_s)
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
        failed: _Error | None = None,
    ) -> None:
        """Record answers to equal items of a call.

        Their error is recorded if they have one.

        evaluated  their operator and data type; None if unknown
        """
        if self.cells is not None:
            operator, dtype = (
                ("", "") if evaluated is None else (evaluated[0], _DTYPES[evaluated[1]])
            )
            self.cells.values[place(ITEMS, operator, dtype, status)] += count
            if failed is not None:
                _count_error(self.cells, call, failed)

    def step(self, nbytes: int) -> None:
        """Record a step of a stream.

        nbytes is the number of bytes it read and wrote.
        """
        if self.cells is not None:
            self.cells.observe(STEP, nbytes)


def _known(method: str) -> str:
    """Return the name of a method; empty for a caller's own text."""
    return method if method in METHOD.values else ""


def _count(cells: Cells, call: Observed, status: str, duration_s: float) -> None:
    method, operator = _known(call.method), call.operator
    dtype = "" if call.dtype is None else _DTYPES[call.dtype]
    cells.values[place(IN_FLIGHT, method)] -= 1.0
    cells.observe(REQUEST_DURATION, duration_s, method, operator, dtype, status)
    for phase, seconds in call.phases.seconds.items():
        if seconds:
            cells.observe(PHASE_DURATION, seconds, phase, operator)
    if call.received_bytes:
        cells.observe(RECEIVED, call.received_bytes, method)
    if call.sent_bytes:
        cells.observe(SENT, call.sent_bytes, method)


def _count_error(cells: Cells, call: Observed, failed: _Error) -> None:
    """Count an error and add it to the notes."""
    reason, limit = failed.reason_name, failed.facts.get("limit", "")
    cells.values[place(ERRORS, _known(call.method), reason, limit)] += 1.0
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
