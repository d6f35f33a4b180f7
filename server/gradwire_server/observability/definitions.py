"""Definitions of every metric: name, kind, unit, labels, buckets and help.

docs/metrics.md lists the same. The values of every label are known when the server starts, and none
is a caller's own text, so the number of time series is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, get_args

from gradwire import ops, v1
from gradwire._wire.environment import VERSION
from gradwire.tensors import DTYPES
from gradwire_server.config.settings import Settings
from gradwire_server.engine import NUMERICS_VERSION

# Phases of a call; recording.Phases describes them.
Phase = Literal["receive", "queue", "compute", "send"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its values; the last stands for unlisted ones."""

    name: str
    values: tuple[str, ...]

    def index(self, value: str) -> int:
        """Return the index of a value."""
        return self.values.index(value) if value in self.values else len(self.values) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric; hashed by identity, for the cache of cells.

    name     in Prometheus's form: with its unit, and _total for counters
    buckets  upper bounds of a histogram's buckets; an unbounded one follows
    """

    name: str
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    by_worker: bool = False

    @property
    def kind(self) -> str:
        """Its type in Prometheus."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels; the worker's comes first."""
        return (*["worker"] * self.by_worker, *(label.name for label in self.labels))

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells of one worker, [label, ..., cell].

        A histogram has its sum, then a count per bucket.
        """
        cells = len(self.buckets) + 2 if self.buckets else 1
        return (*(len(label.values) for label in self.labels), cells)


_SETTINGS = {one.name: one for one in fields(Settings)}
_LIMITS = (name for name in _SETTINGS if name.startswith("max_"))
_BACKENDS = tuple(name for name in _SETTINGS["backend"].metadata["choices"] if name != "auto")
# UNSPECIFIED, the first one in the enum, stands for unlisted reasons.
_ENUM = v1.ErrorReason.DESCRIPTOR.values_by_name
_UNSPECIFIED, *_REASONS = (name.removeprefix("ERROR_REASON_") for name in _ENUM)
_SERVICE = v1.EvaluateRequest.DESCRIPTOR.file.services_by_name["GradientService"]
# Names of gRPC status codes returned by handlers.
_STATUSES = (
    *("ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION"),
    *("INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "OK", "PERMISSION_DENIED"),
    *("RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE", "UNIMPLEMENTED"),
)

# Of the Open Inference Protocol; its other methods count as unknown.
_INFERENCE = ("ModelInfer", "ModelStreamInfer")
METHOD = Label("method", (*_SERVICE.methods_by_name, *_INFERENCE, "unknown"))
OPERATOR = Label("operator", (*ops.OPERATORS, "unknown"))
DTYPE = Label("dtype", (*(dtype.name for dtype in DTYPES.values()), "unknown"))
STATUS_LABEL = Label("status", (*_STATUSES, "UNKNOWN"))
REASON = Label("reason", (*_REASONS, _UNSPECIFIED))
LIMIT = Label("limit", ("", *_LIMITS, "deadline", "other"))
PHASE = Label("phase", PHASES)

# From the time of one computation of a tiny tensor to that of a stream of gigabytes.
_SECONDS = (
    *(digit * 10.0**power for power in range(-5, 1) for digit in (1, 2.5, 5)),
    *(10.0, 30.0, 60.0, 300.0),
)
_BYTES = tuple(4.0**power for power in range(3, 18))

_of_worker = partial(Metric, by_worker=True)
_CALL = (METHOD, OPERATOR, DTYPE, STATUS_LABEL)
REQUEST_DURATION = Metric(
    "gradwire_request_duration_seconds", "Time from arrival to status.", _CALL, _SECONDS
)
PHASE_DURATION = Metric(
    "gradwire_phase_duration_seconds", "Time of a call in a phase.", (PHASE, OPERATOR), _SECONDS
)
RECEIVED = Metric("gradwire_received_bytes", "Tensor bytes received by a call.", (METHOD,), _BYTES)
SENT = Metric("gradwire_sent_bytes", "Tensor bytes sent by a call.", (METHOD,), _BYTES)
STEP = Metric("gradwire_step_bytes", "Input and result bytes of a stream's step.", (), _BYTES)
ITEMS = Metric(
    "gradwire_items_total", "Evaluations answered by EvaluateMany.", (OPERATOR, DTYPE, STATUS_LABEL)
)
ERRORS = Metric("gradwire_errors_total", "Failed calls and items.", (METHOD, REASON, LIMIT))
LOOKUPS = Metric(
    "gradwire_plan_cache_lookups_total",
    "Lookups of plans and tables.",
    (Label("cache", ("evaluations", "tables")), Label("outcome", ("hit", "miss"))),
)
COMPUTED = Metric(
    "gradwire_gpu_computations_total",
    "Computations of cuda, by backend.",
    (Label("backend", _BACKENDS),),
)
LAG = _of_worker("gradwire_event_loop_lag_seconds", "Delay of a timer, 4 a second.", (), _SECONDS)
RESTARTS = _of_worker("gradwire_worker_restarts_total", "Replaced processes.")
IN_FLIGHT = _of_worker("gradwire_requests_in_flight", "Calls in flight.", (METHOD,))
QUEUE_DEPTH = _of_worker("gradwire_queue_depth", "Calls in the phase queue.")
MEMORY = _of_worker("gradwire_memory_bytes", "Memory budget of calls in flight.")
MEMORY_LIMIT = _of_worker("gradwire_memory_limit_bytes", "Share of max_memory_bytes.")
SHARED_MEMORY = _of_worker("gradwire_shared_memory_bytes", "Shared memory that clients registered.")
STREAMS = _of_worker("gradwire_streams", "Open streams.")
STREAMS_LIMIT = _of_worker("gradwire_streams_limit", "Share of max_streams.")
READY = _of_worker("gradwire_worker_ready", "1 while the worker serves, otherwise 0.")
KERNELS_PENDING = _of_worker(
    "gradwire_kernels_pending",
    "1 while the worker computes with NumPy until kernels are there, otherwise 0.",
)
DEVICE_MEMORY = _of_worker("gradwire_device_memory_bytes", "GPU memory allocated.")
BUILD = Metric(
    "gradwire_build_info",
    "1, labeled with versions and backend.",
    (
        *(Label("version", (VERSION,)), Label("numerics_version", (NUMERICS_VERSION,))),
        Label("backend", (*_BACKENDS, "other")),
    ),
)

# Metrics that each worker stores: counts outlive their process, states do not.
COUNTS = (
    *(REQUEST_DURATION, PHASE_DURATION, RECEIVED, SENT, STEP, ITEMS, ERRORS),
    *(LOOKUPS, COMPUTED, LAG, RESTARTS),
)
STATES = (
    *(IN_FLIGHT, QUEUE_DEPTH, MEMORY, MEMORY_LIMIT, SHARED_MEMORY, DEVICE_MEMORY),
    *(STREAMS, STREAMS_LIMIT, READY, KERNELS_PENDING, BUILD),
)

# Metrics derived from the others, or known to the process that serves them.
REQUESTS = Metric("gradwire_requests_total", "Calls with a status.", _CALL)
WORKER_REQUESTS = _of_worker("gradwire_worker_requests_total", "Calls with a status.")
CERTIFICATE_EXPIRES = Metric(
    "gradwire_certificate_expiration_timestamp_seconds", "Expiry of the certificate, since 1970."
)
PROCESSOR = _of_worker("process_cpu_seconds_total", "CPU time of running processes.")
RESIDENT = _of_worker("process_resident_memory_bytes", "Resident memory.")
PROCESS_START = _of_worker("process_start_time_seconds", "Start, since 1970.")
PROCESSES = (
    *(PROCESSOR, RESIDENT, PROCESS_START),
    _of_worker("process_virtual_memory_bytes", "Virtual memory."),
    _of_worker("process_open_fds", "Open file descriptors."),
    _of_worker("process_max_fds", "Limit of open file descriptors."),
)
METRICS = (*COUNTS, *STATES, REQUESTS, WORKER_REQUESTS, CERTIFICATE_EXPIRES, *PROCESSES)
