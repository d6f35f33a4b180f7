"""The metrics as Prometheus reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from gradwire_server.observability.families import Family, families
from gradwire_server.observability.ledger import Ledgers
from gradwire_server.observability.processes import Processes

# While it writes an answer its thread holds the interpreter, and the event loop would wait for the
# switch interval again and again: it pauses after so many lines, for so long.
_LINES = 40
_PAUSE_S = 50e-6
# Answers made at once; the others wait.
_AT_ONCE = 4


class Exposition:
    """Writes what ledgers hold. Thread-safe."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(ledgers))
        self._free = threading.BoundedSemaphore(_AT_ONCE)

    def told(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that is asked for, and its content type."""
        encode, content_type = choose_encoder(accept)
        with self._free:
            return encode(self._registry), content_type


class _Metrics(Collector):
    """Gives a registry of prometheus_client what the ledgers hold."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._processes = Processes()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[PrometheusMetric]:
        return []

    def collect(self) -> Iterator[PrometheusMetric]:
        with self._lock:
            workers = self._ledgers.read()
            expires_s = self._ledgers.certificate_expires_s()
            found = [
                *families(workers, expires_s),
                *self._processes.read(workers),
            ]
        for family in found:
            metric = _in_prometheus_form(family)
            metric.samples = _WithPauses(metric.samples)
            yield metric


class _WithPauses(list[PrometheusSample]):
    """Samples whose reader lets other threads run now and then."""

    def __iter__(self) -> Iterator[PrometheusSample]:
        for number, sample in enumerate(super().__iter__()):
            if number % _LINES == 0:
                time.sleep(_PAUSE_S)
            yield sample


def _in_prometheus_form(family: Family) -> PrometheusMetric:
    metric = family.metric
    names = metric.label_names
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for sample in family.samples:
            counts = _running_sums(sample.buckets)
            buckets = list(zip(bounds, counts, strict=True))
            histogram.add_metric(sample.labels, buckets, sum_value=sample.value)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=names)
    for sample in family.samples:
        plain.add_metric(sample.labels, sample.value)
    return plain


def _running_sums(counts: tuple[float, ...]) -> list[float]:
    total = 0.0
    sums: list[float] = []
    for count in counts:
        total += count
        sums.append(total)
    return sums
