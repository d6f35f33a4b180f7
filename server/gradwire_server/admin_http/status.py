"""Content of the status page and /status.json, as plain values.

state      serving, partly (some workers do not serve), away (none serves)
rates      per second, in the last seconds; None in the first second
history    rates of each five seconds in the last five minutes, the oldest first
latency    quantiles in seconds of the last minutes; "call" is the time from arrival to status
operators  counts of each operator; the last one may be "", for calls that named none
errors     the latest errors, the last one first
workers    request_budget_bytes is the memory budget of calls in flight; resident_bytes is of the
           running processes; processor_s includes ended ones; device_memory_bytes is on the GPU
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from gradwire_server.admin_http.history import EVERY_S, History, Totals, quantile, totals
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.observability.cells import (
    Floats,
    Ledgers,
    NotedError,
    Worker,
    newest,
    span,
)
from gradwire_server.observability.definitions import (
    DEVICE_MEMORY,
    IN_FLIGHT,
    MEMORY,
    MEMORY_LIMIT,
    OPERATOR,
    PHASE_DURATION,
    PHASES,
    PROCESSOR,
    QUEUE_DEPTH,
    READY,
    REQUEST_DURATION,
    RESIDENT,
    RESTARTS,
    STREAMS,
    STREAMS_LIMIT,
    Metric,
)
from gradwire_server.observability.exposition import Processes

_QUANTILES = (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99))
_MOST_ERRORS = 20
# Window of the current rate, in seconds.
LATELY_S = 9.0
# Shortest window for which a rate is computed.
_LEAST_S = 1.0
# An event loop silent for this long hangs: otherwise a heartbeat comes every few seconds.
SILENT_S = 4 * EVERY_S
# After this silence an event loop does not recover by itself.
DEAD_S = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """Constant facts of the server that the page describes.

    settings  of the whole server
    address   where it serves
    started   in seconds since the Unix epoch, and by a clock that never jumps
    """

    settings: Settings
    address: str
    started: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))


def status(
    subject: Subject, ledgers: Ledgers, history: History, processes: Processes
) -> dict[str, Any]:
    """Return the current status."""
    workers = ledgers.read()
    places = _workers(workers, history.silent_s(), processes)
    serving = sum(place["state"] == "serving" for place in places)
    told = next(
        (told for ledger in ledgers.all if (told := ledger.description())), dict[str, str]()
    )
    started, began = subject.started
    return {
        "state": "serving" if serving == len(places) else "partly" if serving else "away",
        "workers_serving": serving,
        "version": VERSION,
        "numerics_version": NUMERICS_VERSION,
        "address": subject.address,
        "tls": bool(subject.settings.tls_certificate),
        "started": _utc(started),
        "now": _utc(time.time()),
        "uptime_s": round(time.monotonic() - began, 1),
        "backend": told.get("backend", ""),
        "backend_reason": told.get("backend_reason", ""),
        "backend_to_come": told.get("backend_to_come", ""),
        "compute_threads": subject.settings.threads,
        "settings": _changed(subject.settings),
        **_counted(history, totals(workers)),
        **_held(subject.settings, workers),
        "workers": places,
        "errors": _errors(ledgers),
    }


def is_ready(ledgers: Ledgers) -> bool:
    """Return whether any worker serves."""
    return _total(ledgers.read(), READY) > 0


def is_alive(workers: Sequence[Worker], silent_s: Sequence[float]) -> bool:
    """Return whether the server is alive.

    It is not alive if every serving event loop hangs.

    silent_s  for how long each worker's event loop was not seen alive
    """
    both = zip(workers, silent_s, strict=True)
    serving = [seconds for worker, seconds in both if _total([worker], READY)]
    return not serving or min(serving) < DEAD_S


def state_of(worker: Worker, silent_s: float) -> str:
    """Return the state of a worker: away, not ready, hangs or serving."""
    if not worker.pids:
        return "away"
    if not _total([worker], READY):
        return "not ready"
    return "hangs" if silent_s >= SILENT_S else "serving"


def _counted(history: History, now: Totals) -> dict[str, Any]:
    seconds, counted = history.since(LATELY_S, now)
    late_s, late = history.since(math.inf, now)
    return {
        "rates": _rates(seconds, counted) if seconds >= _LEAST_S else None,
        "history": {"every_s": EVERY_S, "rates": [_rates(*step) for step in history.steps()]},
        "totals": {"calls": int(now.calls.sum()), "items": int(now.items.sum())},
        "latency": {"window_s": round(late_s, 1), "phases": _latency(late)},
        "operators": _operators(now, late, counted, seconds),
    }


def _rates(seconds: float, counted: Totals) -> dict[str, float]:
    failed = counted.failed.sum() + counted.items_failed.sum()
    sums = {
        "calls": counted.calls.sum(),
        "items": counted.items.sum(),
        "failed": failed,
        "tensor_bytes": counted.tensor_bytes,
    }
    return {name: round(float(value) / seconds, 3) for name, value in sums.items()}


def _latency(late: Totals) -> list[dict[str, Any]]:
    bounds = PHASE_DURATION.buckets
    rows = [
        {"phase": phase, **_quantiles(bounds, counts)}
        for phase, counts in zip(PHASES, late.phases, strict=True)
    ]
    whole = _quantiles(REQUEST_DURATION.buckets, late.durations.sum(axis=0))
    return [*rows, {"phase": "call", **whole}]


def _quantiles(bounds: Sequence[float], counts: Floats) -> dict[str, Any]:
    found = {name: quantile(bounds, counts, share) for name, share in _QUANTILES}
    return {"count": int(counts.sum()), **found}


def _operators(now: Totals, late: Totals, lately: Totals, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    calls, late_calls = now.calls.sum(axis=0), lately.calls.sum(axis=0)
    for number, name in enumerate(OPERATOR.values):
        if not calls[number] + now.items[number]:
            continue
        row: dict[str, Any] = {
            "operator": "" if number == len(calls) - 1 else name,
            "calls": int(calls[number]),
            "items": int(now.items[number]),
            "failed": int(now.failed[number] + now.items_failed[number]),
            "per_s": round(float(late_calls[number] + lately.items[number]) / seconds, 3),
        }
        rows.append(row | _quantiles(REQUEST_DURATION.buckets, late.durations[number]))
    return sorted(rows, key=lambda row: (not row["operator"], -row["calls"] - row["items"]))


def _held(settings: Settings, workers: Sequence[Worker]) -> dict[str, Any]:
    total = partial(_total, workers)
    return {
        "in_flight": total(IN_FLIGHT),
        "queue": {"now": total(QUEUE_DEPTH), "limit": settings.max_queue},
        "request_budget_bytes": {"now": total(MEMORY), "limit": total(MEMORY_LIMIT)},
        "streams": {"now": total(STREAMS), "limit": total(STREAMS_LIMIT)},
    }


def _workers(
    workers: Sequence[Worker], silent_s: Sequence[float], processes: Processes
) -> list[dict[str, Any]]:
    figures = processes.read(workers)
    resident, processor = (
        {sample.labels["worker"]: sample.value for sample in figures[metric]}
        for metric in (RESIDENT, PROCESSOR)
    )
    return [
        {
            "worker": worker.name,
            "state": state_of(worker, silent),
            "pids": list(worker.pids),
            "restarts": _total([worker], RESTARTS),
            "in_flight": _total([worker], IN_FLIGHT),
            "queue": _total([worker], QUEUE_DEPTH),
            "request_budget_bytes": _total([worker], MEMORY),
            "resident_bytes": int(resident.get(worker.name, 0)),
            "device_memory_bytes": _total([worker], DEVICE_MEMORY),
            "processor_s": round(processor.get(worker.name, 0.0), 2),
            "streams": _total([worker], STREAMS),
            "silent_s": round(silent, 1),
        }
        for worker, silent in zip(workers, silent_s, strict=True)
    ]


def _errors(ledgers: Ledgers) -> list[dict[str, Any]]:
    """Return the latest errors, equal errors of all workers as one."""
    found: dict[tuple[str, ...], NotedError] = {}
    for error in newest(error for ledger in ledgers.all for error in ledger.errors()):
        key = (error.method, error.operator, error.reason, error.message)
        first = found.setdefault(key, error)
        if first is not error:
            found[key] = replace(first, count=first.count + error.count)
    return [
        {**asdict(error), "latest": _utc(error.latest)}
        for error in list(found.values())[:_MOST_ERRORS]
    ]


def _total(workers: Sequence[Worker], metric: Metric) -> int:
    return int(sum(np.sum(worker.values[span(metric)]) for worker in workers))


def _changed(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not their defaults, secrets masked."""
    told = settings.described(paths=False)
    return {
        one.name: told[one.name]
        for one in fields(settings)
        if getattr(settings, one.name) != one.default
    }


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
