"""Metrics of all workers, in prometheus_client's form.

Processor time, memory and open files of processes come from prometheus_client's collector, which
reads /proc.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, product

import numpy as np
from prometheus_client import Metric as PrometheusMetric
from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gradwire_server.observability.cells import Floats, Worker, cells
from gradwire_server.observability.definitions import (
    BUILD,
    CERTIFICATE_EXPIRES,
    COUNTS,
    PROCESS_START,
    PROCESSES,
    REQUEST_DURATION,
    REQUESTS,
    STATES,
    WORKER_REQUESTS,
    Metric,
)

# Label of the supervisor process.
SUPERVISOR = "supervisor"
# Metrics with few time series return all of them from the start; others only nonzero ones.
_FEW_CELLS = 32


def _samples(metric: Metric, first: tuple[str, ...], values: Floats) -> Iterator[Sample]:
    name, bounds = metric.name, [*map(str, metric.buckets), "+Inf"]
    rows = cells(metric, values).reshape(-1, metric.shape[-1])
    told: list[bool] = np.logical_or(rows.any(axis=1), rows.size <= _FEW_CELLS).tolist()
    every = zip(product(*(label.values for label in metric.labels)), rows, strict=True)
    for texts, row in compress(every, told):
        labels = dict(zip(metric.label_names, (*first, *texts), strict=True))
        value, *counts = row.tolist()
        if not counts:
            yield Sample(name, labels, value)
            continue
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            yield Sample(f"{name}_bucket", labels | {"le": bound}, count)
        yield Sample(f"{name}_count", labels, sum(counts))
        yield Sample(f"{name}_sum", labels, value)


def of_processes(workers: Sequence[Worker]) -> dict[str, Counter[str]]:
    """Return the metrics of the workers' processes, by name and worker.

    Metrics of this process are included if it is not a worker.
    """
    pids = [(worker.name, pid) for worker in workers for pid in worker.pids]
    if all(pid != os.getpid() for _, pid in pids):
        pids.append((SUPERVISOR, os.getpid()))
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, pid in pids:
        collected = ProcessCollector(pid=partial(int, pid), registry=None).collect()
        for each in (sample for metric in collected for sample in metric.samples):
            # Two processes during a replacement: the later start, and sums of the rest.
            earlier = 0 if each.name == PROCESS_START.name else found[each.name][name]
            found[each.name][name] = earlier + each.value  # type: ignore[assignment]
    return found


@dataclass(frozen=True, slots=True)
class Exposition(Collector):
    """Metrics of all workers in prometheus_client's form.

    expires_s  expiry of the server's certificate, in seconds since 1970, or None
    """

    workers: Sequence[Worker]
    expires_s: float | None

    def collect(self) -> Iterator[PrometheusMetric]:
        """Return all metrics."""
        for metric, samples in self._families().items():
            found = PrometheusMetric(metric.name.removesuffix("_total"), metric.help, metric.kind)
            found.samples = samples
            yield found

    def _families(self) -> dict[Metric, list[Sample]]:
        """Return the samples of all metrics.

        Workers are merged, except for metrics that have a worker label.
        """
        workers, found = self.workers, dict[Metric, list[Sample]]()
        merged = np.sum([worker.values for worker in workers], axis=0)
        apart = [((worker.name,), worker.values) for worker in workers]
        for metric in (*COUNTS, *STATES):
            parts = apart if metric.by_worker else [((), merged)]
            found[metric] = [each for part in parts for each in _samples(metric, *part)]
        found[BUILD] = [each._replace(value=1.0) for each in found[BUILD] if each.value]
        found[REQUESTS] = [
            each._replace(name=REQUESTS.name)
            for each in found[REQUEST_DURATION]
            if each.name.endswith("_count")
        ]
        found[WORKER_REQUESTS] = [
            # The first cell of a histogram is its sum.
            Sample(
                WORKER_REQUESTS.name,
                {"worker": worker.name},
                float(cells(REQUEST_DURATION, worker.values)[..., 1:].sum()),
            )
            for worker in workers
        ]
        expires_s = self.expires_s
        found[CERTIFICATE_EXPIRES] = (
            [] if expires_s is None else [Sample(CERTIFICATE_EXPIRES.name, {}, expires_s)]
        )
        figures = of_processes(workers)
        for metric in PROCESSES:
            each = figures[metric.name].items()
            found[metric] = [Sample(metric.name, {"worker": name}, value) for name, value in each]
        return found
