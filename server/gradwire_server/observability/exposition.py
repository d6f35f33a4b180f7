"""Metrics in Prometheus's text formats, with figures of each process.

Processor time, memory and open files of processes come from prometheus_client's collector, which
reads /proc.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from gradwire_server.observability.definitions import PROCESSES, PROCESSOR
from gradwire_server.observability.ledger import (
    SUPERVISOR,
    Family,
    Ledgers,
    Sample,
    Worker,
    families,
)

_CPU = PROCESSOR.name
_START = "process_start_time_seconds"


class Processes:
    """Figures of running processes; remembers the CPU time of ended ones."""

    def __init__(self) -> None:
        self._cpu: dict[tuple[str, int], float] = {}
        self._cpu_of_ended: dict[str, float] = defaultdict(float)

    def read(self, workers: Sequence[Worker]) -> list[Family]:
        """Return the metrics of the workers' processes, and of this one if it is not a worker."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        pids = [(worker.name, pid) for worker in workers for pid in worker.pids]
        if all(pid != os.getpid() for _, pid in pids):
            pids.append((SUPERVISOR, os.getpid()))
        for name, pid in pids:
            for metric, value in _figures(pid).items():
                if metric == _CPU:
                    self._note_cpu(name, pid, value)
                    continue
                # Two during a replacement.
                before = found[metric].get(name, 0.0)
                found[metric][name] = max(before, value) if metric == _START else before + value
        for gone in self._cpu.keys() - set(pids):
            self._cpu_of_ended[gone[0]] += self._cpu.pop(gone)
        for name in {name for name, _ in self._cpu} | self._cpu_of_ended.keys():
            running = sum(seconds for (other, _), seconds in self._cpu.items() if other == name)
            found[_CPU][name] = self._cpu_of_ended[name] + running
        return [
            Family(
                metric,
                tuple(Sample((name,), value) for name, value in found[metric.name].items()),
            )
            for metric in PROCESSES
        ]

    def _note_cpu(self, name: str, pid: int, seconds: float) -> None:
        before = self._cpu.get((name, pid), 0.0)
        if seconds < before:
            # Another process that has the same pid.
            self._cpu_of_ended[name] += before
        self._cpu[name, pid] = seconds


def _figures(pid: int) -> dict[str, float]:
    collected = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {sample.name: sample.value for metric in collected for sample in metric.samples}


# A thread that formats metrics holds the interpreter lock, and the event loop would repeatedly wait
# for the switch interval; the thread therefore pauses for _PAUSE_S after each _LINES lines.
_LINES = 40
_PAUSE_S = 50e-6
# Responses formatted concurrently; further ones wait.
_AT_ONCE = 4


class Exposition:
    """Formats the metrics of ledgers. Thread-safe."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(ledgers))
        self._free = threading.BoundedSemaphore(_AT_ONCE)

    def told(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the accepted format, and its content type."""
        encode, content_type = choose_encoder(accept)
        with self._free:
            return encode(self._registry), content_type


class _Metrics(Collector):
    """Collector of prometheus_client that returns the metrics of ledgers."""

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
    """Samples whose iteration pauses regularly so that other threads run."""

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
