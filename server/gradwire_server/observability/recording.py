"""Phases and metrics of calls, recorded on the event loop without locks."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Generator, Iterable, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

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

if TYPE_CHECKING:
    from gradwire_server.observability.otlp import Tracer

# The invocation metadata of a call.
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# W3C Trace Context, version 00; a malformed header starts a new trace.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


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
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.bounds: dict[Phase, tuple[float, float]] = {}
        self.at_once = dict.fromkeys(PHASES, 0) if at_once is None else at_once

    def told(self) -> str:
        """Format them as the header Server-Timing, in ms: "receive;dur=0.042, ..."."""
        return ", ".join(f"{phase};dur={1e3 * each:.3f}" for phase, each in self.seconds.items())

    def note(self, phase: Phase, began: float, ended: float) -> None:
        """Add a past interval of a phase, by time.perf_counter; leaving `at_once` unchanged."""
        self.seconds[phase] += ended - began
        if phase in self.bounds:
            began = self.bounds[phase][0]
        self.bounds[phase] = began, ended

    @contextmanager
    def spending(self, phase: Phase) -> Generator[None]:
        """Add the duration of the block to a phase."""
        self.at_once[phase] += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.note(phase, began, time.perf_counter())
            self.at_once[phase] -= 1


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """An error as a caller sees it.

    status         name of the status code
    reason_name    name of the reason, without the prefix of the enum
    facts          its metadata
    violations     paths of wrong fields, with descriptions
    retry_after_s  seconds after which a retry may succeed; None if the error sets none
    """

    status: str
    reason_name: str
    message: str
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    violations: tuple[tuple[str, str], ...] = ()
    retry_after_s: float | None = None

    def within(self, **facts: str) -> Self:
        """Add facts about the call."""
        return replace(self, facts={**self.facts, **facts})


class CallRecord:
    """A call, as metrics and traces read it.

    context      grpc's
    operator     empty until it is known, and if there is none
    dtype        None likewise
    received_bytes, sent_bytes  bytes of tensors so far
    request_id, traceparent     made when they are first read, unless the caller gave them
    span         its span, if there is a tracer
    """

    method: str
    context: Any
    phases: Phases
    operator = ""
    dtype: np.dtype[Any] | None = None
    received_bytes = 0
    sent_bytes = 0
    span: Any = None

    @cached_property
    def request_id(self) -> str:
        """The request_id chosen by the caller, or a generated one."""
        # It is no secret: os.urandom would take longer than a small call.
        return f"{random.getrandbits(128):032x}"

    @cached_property
    def traceparent(self) -> str:
        """The caller's trace and parent span, or a generated one."""
        return traceparent_of(self.context.invocation_metadata() or ())


def traceparent_of(metadata: Metadata) -> str:
    """Return the traceparent in a call's metadata, or a new one."""
    for key, value in metadata:
        if key == "traceparent" and isinstance(value, str) and _TRACEPARENT.fullmatch(value):
            return value
    digits = f"{random.getrandbits(192):048x}"
    return f"00-{digits[:32]}-{digits[32:]}-00"


@dataclass(eq=False)
class Observer:
    """Counter of calls, which passes them to a tracer if present.

    Used from one event loop.
    """

    cells: Cells | None = None
    tracer: Tracer | None = None

    def begin(self, call: CallRecord) -> None:
        """Record the start of a call."""
        if self.cells is not None:
            self.cells.values[place(IN_FLIGHT, _known(call.method))] += 1.0
        if self.tracer is not None:
            call.span = self.tracer.begin(call)

    def end(
        self, call: CallRecord, *, status: str, duration_s: float, failed: ErrorStatus | None = None
    ) -> None:
        """Record a call's status, and its error if it has one."""
        if (cells := self.cells) is not None:
            method, operator = _known(call.method), call.operator
            dtype = _name(call.dtype)
            cells.values[place(IN_FLIGHT, method)] -= 1.0
            cells.observe(REQUEST_DURATION, duration_s, method, operator, dtype, status)
            for phase, seconds in call.phases.seconds.items():
                if seconds:
                    cells.observe(PHASE_DURATION, seconds, phase, operator)
            if call.received_bytes:
                cells.observe(RECEIVED, call.received_bytes, method)
            if call.sent_bytes:
                cells.observe(SENT, call.sent_bytes, method)
            self._count_error(call, failed)
        if self.tracer is not None:
            reason = "" if failed is None else failed.reason_name
            self.tracer.end(call, status=status, reason=reason)

    def items(
        self,
        call: CallRecord,
        status: str,
        *,
        operator: str = "",
        dtype: np.dtype[Any] | None = None,
        count: int = 1,
        failed: ErrorStatus | None = None,
    ) -> None:
        """Record answers to equal items, and their error if any."""
        if self.cells is not None:
            self.cells.values[place(ITEMS, operator, _name(dtype), status)] += count
            self._count_error(call, failed)

    def step(self, nbytes: int) -> None:
        """Record a step of a stream and its number of bytes."""
        if self.cells is not None:
            self.cells.observe(STEP, nbytes)

    def _count_error(self, call: CallRecord, failed: ErrorStatus | None) -> None:
        """Count an error and add it to the notes."""
        if self.cells is None or failed is None:
            return
        reason, limit = failed.reason_name, failed.facts.get("limit", "")
        self.cells.values[place(ERRORS, _known(call.method), reason, limit)] += 1.0
        self.cells.notes.error(
            method=call.method,
            operator=call.operator,
            status=failed.status,
            reason=reason,
            message=failed.message,
            request_id=failed.facts.get("request_id", call.request_id),
            # Retry delays differ per caller, so such errors are grouped by limit.
            alike="" if failed.retry_after_s is None else limit or reason,
        )


@cache  # NumPy's property takes 50 times as long
def _name(dtype: np.dtype[Any] | None) -> str:
    """Return the name of a dtype; empty without one."""
    return getattr(dtype, "name", "")


def _known(method: str) -> str:
    """Return the name of a method; empty for a caller's own text."""
    return method if method in METHOD.values else ""
