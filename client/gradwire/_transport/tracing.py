"""Metadata of calls: the token, and with OpenTelemetry a span context.

A process that has not imported OpenTelemetry has neither a tracer nor an active span, so this
package does not import it by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from gradwire._core.options import Options, Sent
from gradwire._wire.environment import VERSION
from gradwire._wire.semantic_conventions import of_address, of_method, of_status, span_name
from gradwire.errors import DeadlineExceededError, GradwireError


@dataclass(slots=True)
class CallSpan:
    """The span of one try of a call, traced or not.

    metadata  of the call; None for none
    answer    of the ended call: a GradwireError, or any other value for success
    """

    metadata: Sent | None
    answer: object = None


def call_span(method: str, options: Options) -> AbstractContextManager[CallSpan]:
    """Start the span of a try as the active span's child.

    Calls without a name go to another service and are not traced.
    """
    sent = None if options.bearer is None else options.bearer()
    if not method or "opentelemetry.trace" not in sys.modules:
        return nullcontext(CallSpan(sent))
    return _traced(method, target=",".join(options.target), sent=sent or ())


@contextmanager
def _traced(method: str, *, target: str, sent: Sent) -> Generator[CallSpan]:
    """Start a CLIENT span; end it after the block with the answer.

    sent  metadata of the call beside the span's own
    """
    from opentelemetry import propagate, trace  # noqa: PLC0415 - optional

    attributes = of_method(method) | of_address("server", target)
    tracer = trace.get_tracer("gradwire", VERSION)
    span = tracer.start_span(span_name(method), kind=trace.SpanKind.CLIENT, attributes=attributes)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    # Keys of gRPC's metadata are lower case.
    metadata = sent + tuple((key.lower(), value) for key, value in carrier.items())
    call = CallSpan(metadata or None)
    # As when the caller is interrupted.
    status = "CANCELLED"
    try:
        yield call
        error = call.answer
        status = (error.status or "UNKNOWN") if isinstance(error, GradwireError) else "OK"
    except DeadlineExceededError:
        status = "DEADLINE_EXCEEDED"
        raise
    finally:
        failed = status != "OK"
        span.set_attributes(of_status(status, failed=failed))
        if failed:
            span.set_status(trace.StatusCode.ERROR, str(call.answer or ""))
        span.end()
