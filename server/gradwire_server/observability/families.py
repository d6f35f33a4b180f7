"""From arrays of cells to metrics with labels and values; pure, and the same for every way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gradwire_server.observability.cells import TOTAL, span, width
from gradwire_server.observability.definitions import (
    BUILD,
    CERTIFICATE_EXPIRES,
    COUNTS,
    REQUEST_DURATION,
    REQUESTS,
    RESTARTS,
    STATES,
    WORKER_REQUESTS,
    Metric,
)
from gradwire_server.observability.ledger import Worker

# Of a metric with few time series all are told, from the start; of others those that counted.
_FEW_CELLS = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """One time series, or one histogram.

    labels   values, in the order of the metric's label names
    value    of a counter or gauge; the sum of a histogram
    buckets  how many values fell into each bucket of a histogram, the one without bound last
    """

    labels: tuple[str, ...]
    value: float
    buckets: tuple[float, ...] = ()

    @property
    def count(self) -> float:
        """How many values a histogram has."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its samples."""

    metric: Metric
    samples: tuple[Sample, ...]


def families(workers: Sequence[Worker], certificate_expires_s: float | None = None) -> list[Family]:
    """Return all that workers tell: merged, but for the metrics that tell workers apart.

    And what is known of the certificate.
    """
    merged = np.sum([worker.values for worker in workers], axis=0) if workers else np.zeros(TOTAL)
    found = [_family(metric, workers, merged) for metric in (*COUNTS, *STATES)]
    durations = next(family for family in found if family.metric is REQUEST_DURATION)
    requests = tuple(Sample(each.labels, each.count) for each in durations.samples)
    by_worker = tuple(Sample((worker.name,), _requests(worker)) for worker in workers)
    restarts = tuple(Sample((worker.name,), float(worker.restarts)) for worker in workers)
    return [
        Family(REQUESTS, requests),
        *found,
        Family(WORKER_REQUESTS, by_worker),
        Family(RESTARTS, restarts),
        Family(
            CERTIFICATE_EXPIRES,
            () if certificate_expires_s is None else (Sample((), certificate_expires_s),),
        ),
    ]


def _family(metric: Metric, workers: Sequence[Worker], merged: NDArray[np.float64]) -> Family:
    if not metric.by_worker:
        samples = tuple(_samples(metric, merged, ()))
        if metric is BUILD:
            samples = tuple(Sample(each.labels, 1.0) for each in samples if each.value)
        return Family(metric, samples)
    return Family(
        metric,
        tuple(
            sample
            for worker in workers
            for sample in _samples(metric, worker.values, (worker.name,))
        ),
    )


def _samples(
    metric: Metric, values: NDArray[np.float64], first: tuple[str, ...]
) -> Iterator[Sample]:
    rows = values[span(metric)].reshape(metric.children, width(metric))
    told = rows.any(axis=1) | (rows.size <= _FEW_CELLS)
    if not told.any():
        return
    labels = list(product(*(label.values for label in metric.labels)))
    for child in np.flatnonzero(told).tolist():
        value, *buckets = rows[child].tolist()
        yield Sample((*first, *labels[child]), value, tuple(buckets))


def _requests(worker: Worker) -> float:
    rows = worker.values[span(REQUEST_DURATION)].reshape(-1, width(REQUEST_DURATION))
    return float(rows[:, 1:].sum())
