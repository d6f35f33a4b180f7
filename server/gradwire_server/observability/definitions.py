"""Definitions of every metric: name, kind, unit, labels, buckets and help.

docs/metrics.md lists the same. The values of every label are known when the server starts, and none
is a caller's own text, so the number of time series is bounded.
"""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, fields
from typing import Any, Literal

from gradwire import ops, v1
from gradwire.tensors import DTYPES
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.observability.phases import PHASES

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "bytes", "seconds"]


@dataclass(frozen=True, slots=True)
class Label:
    """A label and all its values; the last one stands for unlisted values."""

    name: str
    values: tuple[str, ...]

    def index(self, value: str) -> int:
        """Return the index of a value."""
        return self.values.index(value) if value in self.values else len(self.values) - 1


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    name     in Prometheus's form: with its unit, and _total for counters
    buckets  upper bounds of a histogram's buckets; an unbounded one follows
    """

    name: str
    kind: Kind
    help: str
    unit: Unit = ""
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    by_worker: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels; the worker's comes first."""
        own = tuple(label.name for label in self.labels)
        return ("worker", *own) if self.by_worker else own

    @property
    def children(self) -> int:
        """Maximum number of time series, or histograms, of one worker."""
        return math.prod(len(label.values) for label in self.labels)


def _reasons() -> tuple[str, ...]:
    names = [name.removeprefix("ERROR_REASON_") for name in v1.ErrorReason.keys()]  # noqa: SIM118
    return (*(name for name in names if name != "UNSPECIFIED"), "UNSPECIFIED")


def _settings(start: str) -> list[Field[Any]]:
    return [one for one in fields(Settings) if one.name.startswith(start)]


_BACKENDS = tuple(name for name in _settings("backend")[0].metadata["choices"] if name != "auto")
_SERVICE = v1.EvaluateRequest.DESCRIPTOR.file.services_by_name["GradientService"]
# Names of gRPC status codes returned by handlers.
_STATUSES = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "OK",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
)

METHOD = Label("method", (*_SERVICE.methods_by_name, "unknown"))
OPERATOR = Label("operator", (*ops.OPERATORS, "unknown"))
DTYPE = Label("dtype", (*(dtype.name for dtype in DTYPES.values()), "unknown"))
STATUS_LABEL = Label("status", (*_STATUSES, "UNKNOWN"))
REASON = Label("reason", _reasons())
LIMIT = Label("limit", ("", *(one.name for one in _settings("max_")), "deadline", "other"))
PHASE = Label("phase", PHASES)
CACHE = Label("cache", ("evaluations", "tables"))
OUTCOME = Label("outcome", ("hit", "miss"))

# From the time of one computation of a tiny tensor to that of a stream of gigabytes.
_SECONDS = (
    *(digit * 10.0**power for power in range(-5, 1) for digit in (1, 2.5, 5)),
    *(10.0, 30.0, 60.0, 300.0),
)
_BYTES = tuple(4.0**power for power in range(3, 18))

REQUEST_DURATION = Metric(
    "gradwire_request_duration_seconds",
    "histogram",
    "Time from a call's arrival at its handler to its status.",
    unit="seconds",
    labels=(METHOD, OPERATOR, DTYPE, STATUS_LABEL),
    buckets=_SECONDS,
)
PHASE_DURATION = Metric(
    "gradwire_phase_duration_seconds",
    "histogram",
    "Time that a call spent in a phase; queue is what it waited. Those of a stream overlap.",
    unit="seconds",
    labels=(PHASE, OPERATOR),
    buckets=_SECONDS,
)
RECEIVED = Metric(
    "gradwire_received_bytes",
    "histogram",
    "Tensor bytes that a call received, if any.",
    unit="bytes",
    labels=(METHOD,),
    buckets=_BYTES,
)
SENT = Metric(
    "gradwire_sent_bytes",
    "histogram",
    "Tensor bytes that a call sent, if any.",
    unit="bytes",
    labels=(METHOD,),
    buckets=_BYTES,
)
STEP = Metric(
    "gradwire_step_bytes",
    "histogram",
    "Input and result bytes of a step in which a stream is computed.",
    unit="bytes",
    buckets=_BYTES,
)
ITEMS = Metric(
    "gradwire_items_total",
    "counter",
    "Evaluations that calls of EvaluateMany have answered.",
    labels=(OPERATOR, DTYPE, STATUS_LABEL),
)
ERRORS = Metric(
    "gradwire_errors_total",
    "counter",
    "Calls and items refused or failed, by reason and by the setting in the way, if any.",
    labels=(METHOD, REASON, LIMIT),
)
LOOKUPS = Metric(
    "gradwire_plan_cache_lookups_total",
    "counter",
    "Looks for a prepared evaluation, and for the table of an axis where there is none.",
    labels=(CACHE, OUTCOME),
)
COMPUTED = Metric(
    "gradwire_gpu_computations_total",
    "counter",
    "Computations of the backend cuda, by the backend that did them: small ones are the CPU's.",
    labels=(Label("backend", _BACKENDS),),
)
LAG = Metric(
    "gradwire_event_loop_lag_seconds",
    "histogram",
    "How much too late a timer of the event loop fires, four times a second.",
    unit="seconds",
    buckets=_SECONDS,
    by_worker=True,
)
IN_FLIGHT = Metric(
    "gradwire_requests_in_flight",
    "gauge",
    "Calls that have no status yet.",
    labels=(METHOD,),
    by_worker=True,
)
QUEUE_DEPTH = Metric(
    "gradwire_queue_depth", "gauge", "Calls in the phase queue: those that wait.", by_worker=True
)
MEMORY = Metric(
    "gradwire_memory_bytes",
    "gauge",
    "Memory that the evaluations in flight are let in for.",
    unit="bytes",
    by_worker=True,
)
MEMORY_LIMIT = Metric(
    "gradwire_memory_limit_bytes",
    "gauge",
    "The worker's share of max_memory_bytes.",
    unit="bytes",
    by_worker=True,
)
STREAMS = Metric("gradwire_streams", "gauge", "Streams open.", by_worker=True)
STREAMS_LIMIT = Metric(
    "gradwire_streams_limit", "gauge", "The worker's share of max_streams.", by_worker=True
)
READY = Metric(
    "gradwire_worker_ready",
    "gauge",
    "1 while the worker serves; 0 while it starts, stops, or is not there.",
    by_worker=True,
)
BUILD = Metric(
    "gradwire_build_info",
    "gauge",
    "1, labeled with what serves.",
    labels=(
        Label("version", (VERSION,)),
        Label("numerics_version", (NUMERICS_VERSION,)),
        Label("backend", (*_BACKENDS, "other")),
    ),
)

DEVICE_MEMORY = Metric(
    "gradwire_device_memory_bytes",
    "gauge",
    "Memory of its GPU that the worker has taken, tables and buffers it keeps included.",
    unit="bytes",
    by_worker=True,
)

# Metrics that each worker stores: counts outlive their process, states do not.
COUNTS = (
    REQUEST_DURATION,
    PHASE_DURATION,
    RECEIVED,
    SENT,
    STEP,
    ITEMS,
    ERRORS,
    LOOKUPS,
    COMPUTED,
    LAG,
)
STATES = (
    *(IN_FLIGHT, QUEUE_DEPTH, MEMORY, MEMORY_LIMIT, STREAMS, STREAMS_LIMIT, READY),
    *(DEVICE_MEMORY, BUILD),
)

# Metrics derived from the others, or known to the process that serves them.
REQUESTS = Metric(
    "gradwire_requests_total",
    "counter",
    "Calls that have their status.",
    labels=REQUEST_DURATION.labels,
)
WORKER_REQUESTS = Metric(
    "gradwire_worker_requests_total",
    "counter",
    "Calls that have their status, by worker.",
    by_worker=True,
)
RESTARTS = Metric(
    "gradwire_worker_restarts_total",
    "counter",
    "Processes that took the place of one that had ended.",
    by_worker=True,
)
CERTIFICATE_EXPIRES = Metric(
    "gradwire_certificate_expiration_timestamp_seconds",
    "gauge",
    "When the certificate that the server shows expires, since the Unix epoch.",
    unit="seconds",
)
PROCESSOR = Metric(
    "process_cpu_seconds_total",
    "counter",
    "User and system CPU time, that of former processes of the worker too.",
    unit="seconds",
    by_worker=True,
)
RESIDENT = Metric(
    "process_resident_memory_bytes", "gauge", "Resident memory.", unit="bytes", by_worker=True
)
PROCESSES = (
    PROCESSOR,
    RESIDENT,
    Metric(
        "process_virtual_memory_bytes",
        "gauge",
        "Virtual memory.",
        unit="bytes",
        by_worker=True,
    ),
    Metric("process_open_fds", "gauge", "Open file descriptors.", by_worker=True),
    Metric("process_max_fds", "gauge", "Most file descriptors.", by_worker=True),
    Metric(
        "process_start_time_seconds",
        "gauge",
        "When the process started, since the Unix epoch.",
        unit="seconds",
        by_worker=True,
    ),
)
_DERIVED = (WORKER_REQUESTS, RESTARTS, CERTIFICATE_EXPIRES)
METRICS = (REQUESTS, *COUNTS, *STATES, *_DERIVED, *PROCESSES)
