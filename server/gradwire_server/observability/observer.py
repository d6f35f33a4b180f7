"""What a call tells when it begins and when it has its status, and who listens."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gradwire_server.observability.recording import Observed, ObservedError, Recorder


class _Tracer(Protocol):
    """spans.Tracer, which is not there without OpenTelemetry."""

    def begin(self, call: Observed) -> Any: ...
    def end(self, span: Any, call: Observed, *, status: str, reason: str) -> None: ...
    def close(self, timeout_s: float) -> None: ...


class Observer:
    """Tells a recorder and a tracer of every call, where there are any."""

    def __init__(self, recorder: Recorder | None = None, tracer: _Tracer | None = None) -> None:
        self.recorder = recorder
        self.tracer = tracer

    def begin(self, call: Observed) -> object:
        """Note that a call begins; return what `end` wants to know of it."""
        if self.recorder is not None:
            self.recorder.begin(call.method)
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
        """Note that a call has its status, and its error if it has one."""
        if self.recorder is not None:
            self.recorder.end(call, status=status, duration_s=duration_s)
            if failed is not None:
                self.recorder.fail(call, failed)
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
        """Note answers to items alike within a call, and their error if they have one.

        evaluated  their operator and data type; None where they are not known
        """
        if self.recorder is not None:
            operator, dtype = evaluated or ("", None)
            self.recorder.items(operator, dtype, status=status, count=count)
            if failed is not None:
                self.recorder.fail(call, failed)

    def step(self, nbytes: int) -> None:
        """Note a step of a stream, and how many bytes it read and wrote."""
        if self.recorder is not None:
            self.recorder.step(nbytes)
