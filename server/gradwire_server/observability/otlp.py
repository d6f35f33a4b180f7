"""Traces and metrics over OTLP; imported only if an export is requested."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, cast

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.samples import Sample

from gradwire._wire.semantic_conventions import Attributes, Conventions, of_address, span_name
from gradwire_server.config.version import VERSION
from gradwire_server.observability.cells import Ledgers
from gradwire_server.observability.definitions import REQUEST_DURATION, REQUESTS, Metric
from gradwire_server.observability.exposition import families
from gradwire_server.observability.recording import Observed

_UNITS = {"_seconds": "s", "_bytes": "By"}
# Least and largest values are not known.
_NO_EXTREMES = cast("tuple[float, float]", (None, None))
_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE


def resource() -> Resource:
    """Describe this server; the environment's attributes take precedence."""
    own = {"service.name": "gradwire-server", "service.version": VERSION}
    told = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in told})


def tracer_provider(endpoint: str) -> TracerProvider:
    """Make a provider that exports spans in batches; OTEL_ variables set sampler and batches."""
    # The server shuts the provider down itself, with a time limit.
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
    return provider


class _Exporter(Protocol):
    def export(self, metrics_data: sdk.MetricsData) -> object: ...
    def shutdown(self) -> None: ...


class MetricsPusher:
    """Exports the metrics of ledgers, periodically and at the end, in its own thread."""

    def __init__(self, endpoint: str, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._exporter: _Exporter = OTLPMetricExporter(endpoint=endpoint or None)
        self._conventions = Conventions.chosen(os.environ)
        self._started_ns = time.time_ns()
        told_ms = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or "60000"
        if not told_ms.isdecimal() or not 0 < int(told_ms) < 1e3 * threading.TIMEOUT_MAX:
            raise ValueError(f"OTEL_METRIC_EXPORT_INTERVAL is {told_ms!r}; give milliseconds")
        self._every_s = int(told_ms) / 1e3
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-otlp", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Export once more and stop, within timeout_s."""
        self._over.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        is_over, described = False, resource()
        scope = InstrumentationScope("gradwire_server", VERSION)
        while not is_over:
            is_over = self._over.wait(self._every_s)
            times = self._started_ns, time.time_ns()
            told = families(self._ledgers.read(), self._ledgers.certificate_expires_s())
            found = [_metric(*each, times, self._conventions) for each in told.items() if each[1]]
            metrics = [sdk.ResourceMetrics(described, [sdk.ScopeMetrics(scope, found, "")], "")]
            self._exporter.export(sdk.MetricsData(metrics))


def _metric(
    metric: Metric, samples: Sequence[Sample], times: tuple[int, int], conventions: Conventions
) -> sdk.Metric:
    """Convert one metric; the duration of calls is named by the semantic conventions."""
    suffix, unit = next((each for each in _UNITS.items() if each[0] in metric.name), ("", "1"))
    name, scale = metric.name.removesuffix("_total").removesuffix(suffix).replace("_", ".", 1), 1.0
    if metric is REQUEST_DURATION:
        name = "rpc.server.call.duration" if conventions.new else "rpc.server.duration"
        unit, scale = ("s", 1.0) if conventions.new else ("ms", 1e3)
    if not metric.buckets:
        numbers = [
            sdk.NumberDataPoint(_attributes(metric, each, conventions), *times, each.value)
            for each in samples
        ]
        gauge, counter = sdk.Gauge(numbers), sdk.Sum(numbers, _CUMULATIVE, is_monotonic=True)
        data = counter if metric.kind == "counter" else gauge
        return sdk.Metric(name, metric.help, unit, data)
    bounds = [bound * scale for bound in metric.buckets]
    points: list[sdk.HistogramDataPoint] = []
    # The samples of a histogram are its running counts, its count and its sum.
    for *running, count, total in zip(*[iter(samples)] * (len(bounds) + 3), strict=True):
        attributes = _attributes(metric, total, conventions)
        figures = int(count.value), total.value * scale
        counts = [
            int(after - before)
            for before, after in pairwise([0.0, *(each.value for each in running)])
        ]
        points.append(
            sdk.HistogramDataPoint(attributes, *times, *figures, counts, bounds, *_NO_EXTREMES)
        )
    return sdk.Metric(name, metric.help, unit, sdk.Histogram(points, _CUMULATIVE))


def _attributes(metric: Metric, sample: Sample, conventions: Conventions) -> Attributes:
    labels = dict(sample.labels)
    attributes: Attributes = {}
    if metric in {REQUEST_DURATION, REQUESTS}:
        attributes |= conventions.of_method(labels.pop("method"))
        attributes |= conventions.of_status(labels.pop("status"), failed=False)
    return attributes | {f"gradwire.{name}": value for name, value in labels.items() if value}


# Statuses that the conventions for gRPC count as server errors.
_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


class Tracer:
    """Starts and ends the spans of calls.

    address  of the server, as used by callers
    """

    def __init__(self, provider: TracerProvider, *, address: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gradwire_server", VERSION)
        self._conventions = Conventions.chosen(os.environ)
        self._server = of_address("server", address)

    def begin(self, call: Observed) -> trace.Span:
        """Start the span of a call, within the caller's trace if it has one."""
        attributes = self._conventions.of_method(call.method) | self._server
        attributes |= of_address("client", call.peer) | of_address("network.peer", call.peer)
        span = self._tracer.start_span(
            span_name(call.method),
            context=propagate.extract(call.metadata),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
        )
        told = span.get_span_context()
        if told.is_valid:
            call.traceparent = (
                f"00-{told.trace_id:032x}-{told.span_id:016x}-{int(told.trace_flags):02x}"
            )
        return span

    def end(self, span: trace.Span, call: Observed, *, status: str, reason: str) -> None:
        """End the span of a call, with its status."""
        if not span.is_recording():
            span.end()
            return
        failed = status in _FAULTS
        attributes: Attributes = self._conventions.of_status(status, failed=failed)
        attributes["gradwire.request_id"] = call.request_id
        if call.operator:
            attributes["gradwire.operator"] = call.operator
        if call.dtype is not None:
            attributes["gradwire.dtype"] = call.dtype.name
        attributes["gradwire.received_bytes"] = call.received_bytes
        attributes["gradwire.sent_bytes"] = call.sent_bytes
        if reason:
            attributes["gradwire.reason"] = reason
        span.set_attributes(attributes)
        if failed:
            span.set_status(trace.StatusCode.ERROR)
        self._add_phases(span, call)
        span.end()

    def _add_phases(self, span: trace.Span, call: Observed) -> None:
        """Make a span for each phase, from its first begin to its last end."""
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

    def close(self, timeout_s: float) -> None:
        """Export the remaining spans, within timeout_s; the collector may not answer."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)
