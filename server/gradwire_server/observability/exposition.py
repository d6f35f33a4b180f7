"""Metrics of all workers, in prometheus_client's form and in Prometheus's text formats.

Processor time, memory and open files of processes come from prometheus_client's collector, which
reads /proc.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, product

import numpy as np
from prometheus_client import Metric as PrometheusMetric
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gradwire_server.observability import definitions
from gradwire_server.observability.cells import Floats, Ledgers, Worker, span, width
from gradwire_server.observability.definitions import PROCESS_START, PROCESSOR, Metric

# Label of the supervisor process.
SUPERVISOR = "supervisor"
# Metrics with few time series return all of them from the start; others only nonzero ones.
_FEW_CELLS = 32

Families = dict[Metric, list[Sample]]


def families(workers: Sequence[Worker], certificate_expires_s: float | None = None) -> Families:
    """Return the metrics of all workers, and the certificate's.

    Workers are merged, except for metrics that have a worker label.
    """
    merged = np.sum([worker.values for worker in workers], axis=0)
    apart = [({"worker": worker.name}, worker.values) for worker in workers]
    found: Families = {}
    for metric in (*definitions.COUNTS, *definitions.STATES):
        parts = apart if metric.by_worker else [(dict[str, str](), merged)]
        found[metric] = [
            each for first, values in parts for each in _samples(metric, first, values)
        ]
    build, durations = definitions.BUILD, definitions.REQUEST_DURATION
    found[build] = [each._replace(value=1.0) for each in found[build] if each.value]
    requests = definitions.REQUESTS
    found[requests] = [
        each._replace(name=requests.name)
        for each in found[durations]
        if each.name.endswith("_count")
    ]
    calls, expiry = definitions.WORKER_REQUESTS, definitions.CERTIFICATE_EXPIRES
    found[calls] = [Sample(calls.name, labels, _calls(values)) for labels, values in apart]
    expires_s = () if certificate_expires_s is None else (certificate_expires_s,)
    found[expiry] = [Sample(expiry.name, {}, each) for each in expires_s]
    return found


def _calls(values: Floats) -> float:
    rows = values[span(definitions.REQUEST_DURATION)]
    # The first cell of a histogram is its sum.
    return float(rows.reshape(-1, width(definitions.REQUEST_DURATION))[:, 1:].sum())


def _samples(metric: Metric, first: dict[str, str], values: Floats) -> Iterator[Sample]:
    name, bounds = metric.name, [*map(str, metric.buckets), "+Inf"]
    rows = values[span(metric)].reshape(metric.children, width(metric))
    told = rows.any(axis=1) | (rows.size <= _FEW_CELLS)
    if not told.any():
        return
    every = list(product(*(label.values for label in metric.labels)))
    for child in np.flatnonzero(told).tolist():
        own = zip((label.name for label in metric.labels), every[child], strict=True)
        labels = first | dict(own)
        value, *counts = rows[child].tolist()
        if not counts:
            yield Sample(name, labels, value)
            continue
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            yield Sample(f"{name}_bucket", labels | {"le": bound}, count)
        yield Sample(f"{name}_count", labels, sum(counts))
        yield Sample(f"{name}_sum", labels, value)


class Processes:
    """Figures of running processes; remembers the CPU time of ended ones."""

    def __init__(self) -> None:
        # By worker, pid and start: a pid may be that of another process later.
        self._cpu: dict[tuple[str, int, float], float] = {}
        self._cpu_of_ended: dict[str, float] = {}

    def read(self, workers: Sequence[Worker]) -> Families:
        """Return the metrics of the workers' processes.

        Metrics of this process are included if it is not a worker.
        """
        pids = [(worker.name, pid) for worker in workers for pid in worker.pids]
        if all(pid != os.getpid() for _, pid in pids):
            pids.append((SUPERVISOR, os.getpid()))
        found: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, pid in pids:
            collected = ProcessCollector(pid=partial(int, pid), registry=None).collect()
            figures = {each.name: each.value for metric in collected for each in metric.samples}
            for metric, value in figures.items():
                # Two processes during a replacement.
                found[metric][name] = found[metric].get(name, 0.0) + value
            if PROCESS_START.name in figures:
                found[PROCESS_START.name][name] = started = figures[PROCESS_START.name]
                self._cpu[name, pid, started] = figures[PROCESSOR.name]
        for name, pid, started in [key for key in self._cpu if key[:2] not in pids]:
            seconds = self._cpu.pop((name, pid, started))
            self._cpu_of_ended[name] = self._cpu_of_ended.get(name, 0.0) + seconds
        found[PROCESSOR.name] = total = dict(self._cpu_of_ended)
        for (name, _, _), seconds in self._cpu.items():
            total[name] = total.get(name, 0.0) + seconds
        return {
            metric: [
                Sample(metric.name, {"worker": name}, value)
                for name, value in found[metric.name].items()
            ]
            for metric in definitions.PROCESSES
        }


class Exposition(Collector):
    """Formats the metrics of ledgers, one response at a time. Thread-safe."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._processes = Processes()
        self._lock = threading.Lock()

    def encode(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the accepted format, and its content type."""
        encode, content_type = choose_encoder(accept)
        with self._lock:
            return encode(self), content_type

    def collect(self) -> Iterator[PrometheusMetric]:
        """Return all metrics."""
        workers = self._ledgers.read()
        of_calls = families(workers, self._ledgers.certificate_expires_s())
        for metric, samples in (of_calls | self._processes.read(workers)).items():
            told = PrometheusMetric(metric.name.removesuffix("_total"), metric.help, metric.kind)
            told.samples = samples
            yield told
