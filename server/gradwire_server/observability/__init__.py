"""Metrics for Prometheus, metrics and traces over OTLP, and logs.

definitions  every metric
cells        arrays of each process's counts and latest errors, shared with the supervisor
phases       time of one call, by phase
recording    metrics recorded by calls, and sampled from the server
exposition   metrics of all workers, and the text formats of Prometheus
otlp         export with OpenTelemetry, if it is installed and requested
logs         log lines
"""

from __future__ import annotations

from gradwire_server.observability.cells import Cells, Ledger, Ledgers
from gradwire_server.observability.recording import Observer, Recorder, Sampler

__all__ = [
    "Cells",
    "Ledger",
    "Ledgers",
    "Observer",
    "Recorder",
    "Sampler",
]
