"""Traces and metrics over OTLP; imported only if an export is requested."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol, cast

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gradwire._conventions import Attributes, Conventions, of_address, span_name
from gradwire_server.config.version import VERSION
from gradwire_server.observability.definitions import REQUEST_DURATION, REQUESTS, Metric
from gradwire_server.observability.ledger import Family, Ledgers, Sample, families
from gradwire_server.observability.recording import Observed

_EVERY_MS = 60_000
_UNITS = {"seconds": "s", "bytes": "By", "": "1"}
_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE


def resource() -> Resource:
    """Describe this server; the environment's attributes take precedence."""
    own = {"service.name": "gradwire-server", "service.version": VERSION}
    told = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in told})


def tracer_provider(endpoint: str | None) -> TracerProvider:
    """Make a provider that exports spans in batches; OTEL_ variables set sampler and batches."""
    # The server shuts the provider down itself, with a time limit.
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


class _Exporter(Protocol):
    def export(self, metrics_data: sdk.MetricsData) -> object: ...
    def shutdown(self) -> None: ...


class MetricsPusher:
    """Exports the metrics of ledgers, periodically and at the end, in its own thread."""

    def __init__(self, endpoint: str | None, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._exporter: _Exporter = OTLPMetricExporter(endpoint=endpoint)
        self._resource = resource()
        self._conventions = Conventions.chosen(os.environ)
        self._started_ns = time.time_ns()
        self._every_s = _interval_s(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwire-otlp", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Export once more and stop, within timeout_s."""
        self._over.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._export()
        self._export()

    def _export(self) -> None:
        now_ns = time.time_ns()
        form = _Form(self._conventions, self._started_ns, now_ns)
        told = families(self._ledgers.read(), self._ledgers.certificate_expires_s())
        found = [form.metric(each) for each in told if each.samples]
        scope = sdk.ScopeMetrics(InstrumentationScope("gradwire_server", VERSION), found, "")
        self._exporter.export(sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")]))


def _interval_s(told_ms: str) -> float:
    try:
        interval_s = float(told_ms or _EVERY_MS) / 1e3
    except ValueError:
        interval_s = 0.0
    if not 0 < interval_s < threading.TIMEOUT_MAX:
        raise ValueError(
            f"OTEL_METRIC_EXPORT_INTERVAL is {told_ms!r}; give milliseconds, such as {_EVERY_MS}"
        )
    return interval_s


class _Form:
    """Converts metrics to OpenTelemetry's form and names, at one moment."""

    def __init__(self, conventions: Conventions, started_ns: int, now_ns: int) -> None:
        self._conventions = conventions
        self._times = (started_ns, now_ns)

    def metric(self, family: Family) -> sdk.Metric:
        """Convert one metric; the duration of calls is named by the semantic conventions."""
        metric = family.metric
        if metric is REQUEST_DURATION:
            return self._durations(family)
        data: sdk.DataT
        match metric.kind:
            case "histogram":
                points = [self._histogram(metric, each, 1.0) for each in family.samples]
                data = sdk.Histogram(points, _CUMULATIVE)
            case "counter":
                data = sdk.Sum(self._numbers(family), _CUMULATIVE, is_monotonic=True)
            case "gauge":
                data = sdk.Gauge(self._numbers(family))
        return sdk.Metric(otlp_name(metric), metric.help, _UNITS[metric.unit], data)

    def _durations(self, family: Family) -> sdk.Metric:
        new = self._conventions.new
        name, unit, scale = (
            ("rpc.server.call.duration", "s", 1.0) if new else ("rpc.server.duration", "ms", 1e3)
        )
        points = [self._histogram(family.metric, each, scale) for each in family.samples]
        data = sdk.Histogram(points, _CUMULATIVE)
        return sdk.Metric(name, family.metric.help, unit, data)

    def _histogram(self, metric: Metric, sample: Sample, scale: float) -> sdk.HistogramDataPoint:
        unknown = cast("float", None)
        return sdk.HistogramDataPoint(
            self._attributes(metric, sample),
            *self._times,
            count=int(sample.count),
            sum=sample.value * scale,
            bucket_counts=[int(count) for count in sample.buckets],
            explicit_bounds=[bound * scale for bound in metric.buckets],
            min=unknown,
            max=unknown,
        )

    def _numbers(self, family: Family) -> list[sdk.NumberDataPoint]:
        return [
            sdk.NumberDataPoint(self._attributes(family.metric, each), *self._times, each.value)
            for each in family.samples
        ]

    def _attributes(self, metric: Metric, sample: Sample) -> Attributes:
        labels = dict(zip(metric.label_names, sample.labels, strict=True))
        attributes: Attributes = {}
        if metric in {REQUEST_DURATION, REQUESTS}:
            method, status = labels.pop("method"), labels.pop("status")
            attributes |= self._conventions.of_method(method)
            attributes |= self._conventions.of_status(status, failed=False)
        return attributes | {f"gradwire.{name}": value for name, value in labels.items() if value}


def otlp_name(metric: Metric) -> str:
    """Return the OpenTelemetry name of a metric: without unit and kind."""
    plain = metric.name.removesuffix("_total").removesuffix(f"_{metric.unit}")
    return plain.replace("_", ".", 1)


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
        self._tell_phases(span, call)
        span.end()

    def _tell_phases(self, span: trace.Span, call: Observed) -> None:
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
