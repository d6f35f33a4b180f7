"""From a decoded request to the bytes of its result; knows no wire."""

from __future__ import annotations

from gradwire_server.engine.admission import Admission
from gradwire_server.engine.admitted_streams import AdmittedStream
from gradwire_server.engine.assembly import Arrived, InputAssembler
from gradwire_server.engine.execute import (
    ArraySink,
    ArraySource,
    Sink,
    Source,
    WireSink,
    WireSource,
    at_once,
    execute,
    in_memory,
    rows_of,
    together,
)
from gradwire_server.engine.holdings import Holdings
from gradwire_server.engine.inline import InlineWork
from gradwire_server.engine.layout import FILLED, TensorSpec
from gradwire_server.engine.limits import Limits, exceeded
from gradwire_server.engine.prepared import (
    NUMERICS_VERSION,
    EvaluationRequest,
    Preparation,
    Prepared,
    Preparer,
)
from gradwire_server.engine.ring import Ring
from gradwire_server.engine.steps import Step
from gradwire_server.engine.table_cache import TableCache
from gradwire_server.engine.turned_work import TurnedWork
from gradwire_server.engine.turns import TURN_S, Claim, Turns

__all__ = [
    "FILLED",
    "NUMERICS_VERSION",
    "TURN_S",
    "Admission",
    "AdmittedStream",
    "ArraySink",
    "ArraySource",
    "Arrived",
    "Claim",
    "EvaluationRequest",
    "Holdings",
    "InlineWork",
    "InputAssembler",
    "Limits",
    "Preparation",
    "Prepared",
    "Preparer",
    "Ring",
    "Sink",
    "Source",
    "Step",
    "TableCache",
    "TensorSpec",
    "TurnedWork",
    "Turns",
    "WireSink",
    "WireSource",
    "at_once",
    "exceeded",
    "execute",
    "in_memory",
    "rows_of",
    "together",
]
