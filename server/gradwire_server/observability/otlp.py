"""Traces over OTLP; imported only if an export is requested."""

from __future__ import annotations

import threading
import time

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gradwire._wire.environment import VERSION
from gradwire._wire.semantic_conventions import (
    Attributes,
    of_address,
    of_method,
    of_status,
    span_name,
)
from gradwire_server.observability.recording import CallRecord

# Time limit for exporting the last spans: the collector may not answer.
_LAST_EXPORT_S = 3.0


def tracer_provider(endpoint: str) -> TracerProvider:
    """Make a provider that exports spans in batches.

    OTEL_ variables set sampler and batches.

    endpoint  URL; if empty, the exporter reads OpenTelemetry's variables
    """
    own = {"service.name": "gradwire-server", "service.version": VERSION}
    # The environment's attributes take precedence.
    resource = Resource.create(own).merge(OTELResourceDetector().detect())
    # The server shuts the provider down itself, with a time limit.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
    return provider


# Statuses that the conventions for gRPC count as server errors.
_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


class Tracer:
    """Starts and ends the spans of calls.

    address  of the server, as used by callers
    """

    def __init__(self, provider: TracerProvider, *, address: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gradwire_server", VERSION)
        self._server = of_address("server", address)

    def begin(self, call: CallRecord) -> trace.Span:
        """Start a call's span, within the caller's trace if present."""
        attributes = of_method(call.method) | self._server
        peer, sent = call.context.peer(), call.context.invocation_metadata() or ()
        texts = {key: value for key, value in sent if isinstance(value, str)}
        attributes |= of_address("client", peer) | of_address("network.peer", peer)
        span = self._tracer.start_span(
            span_name(call.method),
            context=propagate.extract(texts),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
        )
        told = span.get_span_context()
        if told.is_valid:
            call.traceparent = (
                f"00-{told.trace_id:032x}-{told.span_id:016x}-{int(told.trace_flags):02x}"
            )
        return span

    def end(self, call: CallRecord, *, status: str, reason: str) -> None:
        """End the span of a call, with its status."""
        span: trace.Span = call.span
        if span.is_recording():
            failed = status in _FAULTS
            attributes: Attributes = of_status(status, failed=failed)
            facts: Attributes = {
                "request_id": call.request_id,
                "operator": call.operator,
                "dtype": "" if call.dtype is None else call.dtype.name,
                "received_bytes": call.received_bytes,
                "sent_bytes": call.sent_bytes,
                "reason": reason,
            }
            attributes |= {f"gradwire.{name}": fact for name, fact in facts.items() if fact != ""}
            span.set_attributes(attributes)
            if failed:
                span.set_status(trace.StatusCode.ERROR)
            self._add_phases(span, call)
        span.end()

    def _add_phases(self, span: trace.Span, call: CallRecord) -> None:
        """Make a span for each phase.

        It lasts from the phase's first begin to its last end.
        """
        context = trace.set_span_in_context(span)
        epoch_ns = time.time_ns() - time.perf_counter_ns()
        for phase, (began, ended) in call.phases.bounds.items():
            child = self._tracer.start_span(
                phase,
                context=context,
                start_time=epoch_ns + int(began * 1e9),
                attributes={"gradwire.phase.seconds": call.phases.seconds[phase]},
            )
            child.end(epoch_ns + int(ended * 1e9))

    def close(self) -> None:
        """Export the remaining spans, for a few seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_LAST_EXPORT_S)
