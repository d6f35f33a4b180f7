"""Traces and metrics to an OpenTelemetry collector, over OTLP; imported where that is asked for."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gradwire._conventions import Attributes, Conventions
from gradwire_server.config.version import VERSION
from gradwire_server.observability.definitions import REQUEST_DURATION, REQUESTS, Metric
from gradwire_server.observability.families import Family, Sample, families
from gradwire_server.observability.ledger import Ledgers

_EVERY_MS = 60_000
_UNITS = {"seconds": "s", "bytes": "By", "": "1"}
_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE


def resource() -> Resource:
    """Describe this server; what the environment says of it comes first."""
    own = {"service.name": "gradwire-server", "service.version": VERSION}
    told = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in told})


def tracer_provider(endpoint: str | None) -> TracerProvider:
    """Make what exports spans in batches; sampler and batches are as the variables say."""
    # At its end the server shuts it down itself, and waits only so long.
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


class _Exporter(Protocol):
    def export(self, metrics_data: sdk.MetricsData) -> object: ...
    def shutdown(self) -> None: ...


class MetricsPusher:
    """Exports what the ledgers hold, again and again and at the end, in a thread of its own."""

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
        """Export once more and stop; give up after some seconds."""
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
    """Turns metrics into OpenTelemetry's form and names, at one moment."""

    def __init__(self, conventions: Conventions, started_ns: int, now_ns: int) -> None:
        self._conventions = conventions
        self._times = (started_ns, now_ns)

    def metric(self, family: Family) -> sdk.Metric:
        """Turn one metric; the time of calls has the name the conventions give it."""
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
    """Return the name of a metric as OpenTelemetry forms names: unit and kind are not in it."""
    plain = metric.name.removesuffix("_total").removesuffix(f"_{metric.unit}")
    return plain.replace("_", ".", 1)
