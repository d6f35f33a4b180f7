"""Evaluation of decoded requests; imports no gRPC and no protobuf."""

from __future__ import annotations

from gradwire_server.engine.assembly import Arrived, InputAssembler, Ring
from gradwire_server.engine.execute import (
    ArraySink,
    ArraySource,
    Sink,
    Source,
    WireSink,
    WireSource,
    Workbench,
    at_once,
    execute,
    in_memory,
    rows_of,
    together,
)
from gradwire_server.engine.layout import FILLED, Limits, TensorSpec, exceeded
from gradwire_server.engine.prepared import (
    NUMERICS_VERSION,
    EvaluationRequest,
    Preparation,
    Prepared,
    Preparer,
    TableCache,
)
from gradwire_server.engine.tiling import Step

__all__ = [
    "FILLED",
    "NUMERICS_VERSION",
    "ArraySink",
    "ArraySource",
    "Arrived",
    "EvaluationRequest",
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
    "WireSink",
    "WireSource",
    "Workbench",
    "at_once",
    "exceeded",
    "execute",
    "in_memory",
    "rows_of",
    "together",
]
