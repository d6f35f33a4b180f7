"""What the server tells of itself: metrics for Prometheus, and both metrics and traces over OTLP.

definitions   every metric
cells         the array a process counts in, which the supervisor of several shares
notes         what it tells in words there: its latest errors
recording     what calls add to it
sampling      what no call tells
ledger        the arrays of all workers, added up
families      what they say, by metric
exposition    the metrics as Prometheus reads them
otlp, spans   OpenTelemetry, where it is installed and asked for
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
