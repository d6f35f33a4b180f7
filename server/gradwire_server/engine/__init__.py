"""Evaluation of decoded requests; imports no gRPC and no protobuf."""

from __future__ import annotations

from gradwire_server.engine.assembly import InputAssembler
from gradwire_server.engine.execute import (
    Execution,
    Workbench,
    are_rows,
    at_once,
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
)
from gradwire_server.engine.tiling import Step

__all__ = [
    "FILLED",
    "NUMERICS_VERSION",
    "EvaluationRequest",
    "Execution",
    "InputAssembler",
    "Limits",
    "Preparation",
    "Prepared",
    "Preparer",
    "Step",
    "TensorSpec",
    "Workbench",
    "are_rows",
    "at_once",
    "exceeded",
    "in_memory",
    "rows_of",
    "together",
]
