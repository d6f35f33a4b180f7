"""From a decoded request to the bytes of its result; knows no wire."""

from __future__ import annotations

from gradwire_server.engine.admission import Admission
from gradwire_server.engine.admitted_streams import AdmittedStream
from gradwire_server.engine.assembly import InputAssembler
from gradwire_server.engine.batches import Batch
from gradwire_server.engine.evaluation import (
    NUMERICS_VERSION,
    Evaluation,
    EvaluationRequest,
    Preparation,
    Preparer,
)
from gradwire_server.engine.holdings import Holdings
from gradwire_server.engine.in_memory import InMemory
from gradwire_server.engine.layout import FILLED, TensorSpec
from gradwire_server.engine.limits import Limits, exceeded
from gradwire_server.engine.plan_cache import PlanCache
from gradwire_server.engine.ring import Ring
from gradwire_server.engine.running import StepRunner
from gradwire_server.engine.steps import Step
from gradwire_server.engine.turned_work import TurnedWork
from gradwire_server.engine.turns import TURN_S, Claim, Turns
from gradwire_server.engine.whole import WholeRun

__all__ = [
    "FILLED",
    "NUMERICS_VERSION",
    "TURN_S",
    "Admission",
    "AdmittedStream",
    "Batch",
    "Claim",
    "Evaluation",
    "EvaluationRequest",
    "Holdings",
    "InMemory",
    "InputAssembler",
    "Limits",
    "PlanCache",
    "Preparation",
    "Preparer",
    "Ring",
    "Step",
    "StepRunner",
    "TensorSpec",
    "TurnedWork",
    "Turns",
    "WholeRun",
    "exceeded",
]
