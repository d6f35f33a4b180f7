"""Spans of a client's calls; the only importer of OpenTelemetry in this package."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import propagate, trace

from gradwire._conventions import Conventions, of_address, span_name
from gradwire._tracing import Context, status_of
from gradwire._version import VERSION
from gradwire.errors import DeadlineExceededError


@dataclass(slots=True)
class _ClientSpan:
    metadata: Context | None
    answer: object = None

    def note(self, answer: object) -> None:
        """Remember how the call ended."""
        self.answer = answer


@contextmanager
def client_span(method: str, *, target: str, sent: Context) -> Generator[_ClientSpan]:
    """Start a span of kind CLIENT and end it after the block, with what was noted.

    sent  metadata of the call beside the span's own
    """
    conventions = Conventions.chosen(os.environ)
    attributes = conventions.of_method(method) | of_address("server", target)
    tracer = trace.get_tracer("gradwire", VERSION)
    span = tracer.start_span(span_name(method), kind=trace.SpanKind.CLIENT, attributes=attributes)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    # Keys of gRPC's metadata are lower case.
    metadata = sent + tuple((key.lower(), value) for key, value in carrier.items())
    call = _ClientSpan(metadata or None)
    # As where the caller is interrupted.
    status = "CANCELLED"
    try:
        yield call
        status = status_of(call.answer)
    except DeadlineExceededError:
        status = "DEADLINE_EXCEEDED"
        raise
    finally:
        failed = status != "OK"
        span.set_attributes(conventions.of_status(status, failed=failed))
        if failed:
            span.set_status(trace.StatusCode.ERROR, str(call.answer or ""))
        span.end()
