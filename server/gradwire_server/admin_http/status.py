"""Content of the status page and /status.json, as plain values.

state      serving, partly (some workers do not serve), away (none serves)
totals     since the start of the server; bytes of tensors received and sent
latency    quantiles in seconds; "call" is the time from arrival to status
operators  counts of each operator; the last one may be "", for calls that named none
errors     the latest errors, the last one first
workers    request_budget_bytes is the memory budget of calls in flight; resident_bytes and
           processor_s are of the running processes; device_memory_bytes is on the GPU
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gradwire._wire.environment import VERSION
from gradwire_server.config.settings import Settings
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.observability.cells import Floats, Ledger, Worker, cells, place
from gradwire_server.observability.definitions import (
    DEVICE_MEMORY,
    IN_FLIGHT,
    ITEMS,
    MEMORY,
    MEMORY_LIMIT,
    METHOD,
    OPERATOR,
    PHASE_DURATION,
    PHASES,
    PROCESSOR,
    QUEUE_DEPTH,
    READY,
    RECEIVED,
    REQUEST_DURATION,
    RESIDENT,
    RESTARTS,
    SENT,
    STATUS_LABEL,
    STEP,
    STREAMS,
    STREAMS_LIMIT,
    Metric,
)
from gradwire_server.observability.exposition import of_processes

_QUANTILES = (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99))
_MOST_ERRORS = 20
# An event loop silent for this long hangs: otherwise a heartbeat comes four times a second.
SILENT_S = 20.0
# After this silence an event loop does not recover by itself.
DEAD_S = 60.0
# Statuses not counted as errors.
_FAILED = np.array([status not in {"OK", "CANCELLED"} for status in STATUS_LABEL.values])


def status(
    settings: Settings, ledgers: Sequence[Ledger], *, address: str, started: float = 0.0
) -> dict[str, Any]:
    """Return the current status.

    address  where the server serves
    started  start of the server on the monotonic clock
    """
    workers, now = [ledger.read() for ledger in ledgers], time.time()
    values = np.sum([worker.values for worker in workers], axis=0)
    uptime_s = time.monotonic() - started
    rows = _workers(workers)
    serving = sum(row["state"] == "serving" for row in rows)
    told = next((worker.facts for worker in workers if worker.facts), dict[str, str]())
    return {
        "state": "serving" if serving == len(rows) else "partly" if serving else "away",
        "workers_serving": serving,
        "version": VERSION,
        "numerics_version": NUMERICS_VERSION,
        "address": address,
        "tls": bool(settings.tls_certificate),
        "started": _utc(now - uptime_s),
        "now": _utc(now),
        "uptime_s": round(uptime_s, 1),
        **{name: told.get(name, "") for name in ("backend", "backend_reason", "backend_to_come")},
        "compute_threads": settings.threads,
        "settings": _changed(settings),
        **_counted(values),
        "in_flight": _total(values, IN_FLIGHT),
        "queue": {"now": _total(values, QUEUE_DEPTH), "limit": settings.max_queue},
        "request_budget_bytes": {
            "now": _total(values, MEMORY),
            "limit": _total(values, MEMORY_LIMIT),
        },
        "streams": {"now": _total(values, STREAMS), "limit": _total(values, STREAMS_LIMIT)},
        "workers": rows,
        "errors": _errors([error for worker in workers for error in worker.errors]),
    }


def is_ready(workers: Sequence[Worker]) -> bool:
    """Return whether any worker serves."""
    return any(_total(worker.values, READY) for worker in workers)


def is_alive(workers: Sequence[Worker]) -> bool:
    """Return whether the server is alive.

    It is not alive if every serving event loop hangs.
    """
    silences = [worker.silent_s for worker in workers if is_ready([worker])]
    return min(silences, default=0.0) < DEAD_S


def state_of(worker: Worker) -> str:
    """Return the state of a worker: away, not ready, hangs or serving."""
    if not worker.pids:
        return "away"
    if not is_ready([worker]):
        return "not ready"
    return "hangs" if worker.silent_s >= SILENT_S else "serving"


def _counted(values: Floats) -> dict[str, Any]:
    """Return what calls have added to the counts of all workers."""
    # A histogram's first cell is its sum, the others are its buckets.
    calls = cells(REQUEST_DURATION, values)[..., 1:].sum(axis=(0, 2))  # [operator, status, bucket]
    items = cells(ITEMS, values).sum(axis=(1, 3))  # [operator, status]
    counts = calls.sum(axis=2) + items
    failed = counts[:, _FAILED].sum(axis=1)
    sizes = cells(RECEIVED, values)[:, 0] + cells(SENT, values)[:, 0]
    # Bytes of streams count as they are computed, not at their end.
    sizes[METHOD.index("EvaluateStream")] = values[place(STEP)]
    operators: list[dict[str, Any]] = [
        {
            "operator": "" if name == OPERATOR.values[-1] else name,
            "calls": int(calls[number].sum()),
            "items": int(items[number].sum()),
            "failed": int(failed[number]),
            **_quantiles(calls[number].sum(axis=0)),
        }
        for number, name in enumerate(OPERATOR.values)
        if counts[number].any()
    ]
    phases = cells(PHASE_DURATION, values)[..., 1:].sum(axis=1)
    latency = [
        {"phase": phase, **_quantiles(buckets)}
        for phase, buckets in zip(PHASES, phases, strict=True)
    ]
    whole = _quantiles(calls.sum(axis=(0, 1)))
    return {
        "totals": {
            "calls": int(calls.sum()),
            "items": int(items.sum()),
            "failed": int(failed.sum()),
            "tensor_bytes": int(sizes.sum()),
        },
        "latency": [*latency, {"phase": "call", **whole}],
        "operators": sorted(
            operators, key=lambda row: (not row["operator"], -row["calls"] - row["items"])
        ),
    }


def _quantiles(counts: Floats) -> dict[str, Any]:
    bounds = REQUEST_DURATION.buckets  # those of phases too
    found = {name: quantile(bounds, counts, share) for name, share in _QUANTILES}
    return {"count": int(counts.sum()), **found}


def quantile(bounds: Sequence[float], counts: Floats, share: float) -> float | None:
    """Return a quantile of a histogram; None if it is empty.

    It is the value below which this share of the values lies.

    counts  [bucket], the unbounded one last

    Values are assumed to be evenly spread within a bucket, as in Prometheus' histogram_quantile; a
    quantile beyond the last bound is returned as that bound.
    """
    below: Floats = np.cumsum([0.0, *counts])
    if not below[-1]:
        return None
    # From the last bucket on, since several may end at the same rank: the first one has it.
    edges = np.array([0.0, *bounds, bounds[-1]])
    rank = share * float(below[-1])
    return float(np.interp(-rank, -below[::-1], edges[::-1]))


def _workers(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    figures = of_processes(workers)
    totals = {
        "restarts": RESTARTS,
        "in_flight": IN_FLIGHT,
        "queue": QUEUE_DEPTH,
        "request_budget_bytes": MEMORY,
        "device_memory_bytes": DEVICE_MEMORY,
        "streams": STREAMS,
    }
    return [
        {
            "worker": worker.name,
            "state": state_of(worker),
            "pids": list(worker.pids),
            "resident_bytes": int(figures[RESIDENT.name][worker.name]),
            "processor_s": round(figures[PROCESSOR.name][worker.name], 2),
            "silent_s": round(worker.silent_s, 1),
            **{name: _total(worker.values, metric) for name, metric in totals.items()},
        }
        for worker in workers
    ]


def _errors(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the latest errors, equal errors of all workers as one."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for error in sorted(errors, key=lambda error: -error["latest"]):
        key = (error["method"], error["operator"], error["reason"], error["message"])
        row = found.setdefault(key, {**error, "latest": _utc(error["latest"]), "count": 0})
        row["count"] += error["count"]
    return list(found.values())[:_MOST_ERRORS]


def _total(values: Floats, metric: Metric) -> int:
    return int(cells(metric, values).sum())


def _changed(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not their defaults, secrets masked."""
    usual = asdict(Settings())
    told = settings.described(paths=False)
    return {name: value for name, value in told.items() if value != usual[name]}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
