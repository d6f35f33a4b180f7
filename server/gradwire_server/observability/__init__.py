"""Metrics for Prometheus, metrics and traces over OTLP, and logs.

definitions    every metric
cells          array of one process's counts and its latest errors, shared with the supervisor
phases         time of one call, by phase
recording      metrics recorded by calls, and sampled from the server
ledger         sums of all workers' arrays, and metric families made from them
exposition     text formats of Prometheus
otlp_settings  whether and where to export over OTLP
otlp           export with OpenTelemetry, if it is installed and requested
logs           log lines
"""

from __future__ import annotations

from gradwire_server.observability.cells import Cells
from gradwire_server.observability.ledger import Ledger, Ledgers, Running
from gradwire_server.observability.recording import Observer, Recorder, Sampler

__all__ = [
    "Cells",
    "Ledger",
    "Ledgers",
    "Observer",
    "Recorder",
    "Running",
    "Sampler",
]
