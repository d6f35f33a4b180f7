"""What the server tells of itself: metrics for Prometheus, and both metrics and traces over OTLP.

definitions   every metric
cells         the array a process counts in, which the supervisor of several shares
recording     what calls add to it
sampling      what no call tells
ledger        the arrays of all workers, added up
families      what they say, by metric
exposition    the Prometheus endpoint
otlp, spans   OpenTelemetry, where it is installed and asked for
outlets       which of these the settings turn on
"""

from __future__ import annotations

from gradwire_server.telemetry.cells import Cells
from gradwire_server.telemetry.ledger import DeviceLedger, Ledger, Ledgers, Running
from gradwire_server.telemetry.observer import Observer
from gradwire_server.telemetry.outlets import (
    LAST_EXPORT_S,
    Outlets,
    are_wanted,
    collecting,
    tracer,
)
from gradwire_server.telemetry.recording import Recorder
from gradwire_server.telemetry.sampling import Sampler

__all__ = [
    "LAST_EXPORT_S",
    "Cells",
    "DeviceLedger",
    "Ledger",
    "Ledgers",
    "Observer",
    "Outlets",
    "Recorder",
    "Running",
    "Sampler",
    "are_wanted",
    "collecting",
    "tracer",
]
