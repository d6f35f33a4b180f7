"""Scenarios of load tests: calls, evaluations and expected bits.

Inputs are made by exact arithmetic, so that they are the same on every machine, and so must be the
results: their digests stand here. A load test therefore finds wrong results, even if a server gives
the same wrong ones each time.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal

import numpy as np

from gradwire._core.options import STREAM_THRESHOLD_BYTES
from gradwire.ops import OPERATORS, Operator
from gradwire.tensors import Array, Shape

# Knuth's multiplier for hashing by multiplication (The Art of Computer Programming, 6.4).
_MULTIPLIER = 2654435761


@dataclass(frozen=True, slots=True)
class Problem:
    """One evaluation; every tensor is float32.

    sent, received  shapes of the input and of the result
    digest          SHA-256 of the result's little-endian elements, in hexadecimal
    broadcast       whether the input is one element, seen everywhere
    """

    name: str
    operator: Operator
    sent: Shape
    received: Shape
    digest: str
    broadcast: bool = False

    def input(self) -> Array:
        """Make the input, its numbers between -0.5 and 0.5."""
        count = 1 if self.broadcast else math.prod(self.sent)
        # Modulo 2**32.
        mixed = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(_MULTIPLIER)
        numbers = ((mixed >> 8) / 2**24 - 0.5).astype(np.float32)
        return np.broadcast_to(numbers, self.sent) if self.broadcast else numbers.reshape(self.sent)

    @property
    def is_streamed(self) -> bool:
        """Whether the SDK sends it as a stream."""
        return max(self.sent_bytes, self.received_bytes) > STREAM_THRESHOLD_BYTES

    @property
    def sent_bytes(self) -> int:
        """Tensor bytes that travel to the server."""
        return 4 if self.broadcast else 4 * math.prod(self.sent)

    @property
    def received_bytes(self) -> int:
        """Tensor bytes that travel back."""
        return 4 * math.prod(self.received)


_TABLES = tomllib.loads(files("gradwire.loadtest").joinpath("scenarios.toml").read_text("utf-8"))

PROBLEMS = {
    name: Problem(
        name,
        OPERATORS[fields.pop("operator")](**fields.pop("attributes")),
        tuple(fields.pop("sent")),
        tuple(fields.pop("received")),
        **fields,
    )
    for name, fields in _TABLES["problems"].items()
}


class Judge:
    """Distinguishes right results from wrong ones.

    The first right one is known by its digest; others are compared with it, which is far faster.
    """

    def __init__(self, problem: Problem) -> None:
        self._digest = problem.digest
        self._right = b""

    def is_right(self, result: Array) -> bool:
        """Whether a result has the expected bits."""
        came = np.asarray(result, "<f4").tobytes()
        if not self._right and hashlib.sha256(came).hexdigest() == self._digest:
            self._right = came
        return came == self._right


Manner = Literal["plain", "cancelled", "hurried", "slow"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Calls of one kind.

    problem     name of the evaluation in PROBLEMS
    manner      plain; cancelled: by its caller, after a random time up to within_s; hurried: with a
                deadline of within_s; slow: read with pauses of within_s before every message
    callers     of a closed loop, each calls as soon as it has its result; 0 for an open loop
    rate        calls per second of an open loop; 0 for a closed one
    burst       calls due at once; bursts are rarer in proportion
    expected    gRPC statuses besides OK that are no failure here
    background  whether --rate and --concurrency leave it unchanged: it suffers from the other flows
    """

    name: str
    problem: str
    manner: Manner = "plain"
    callers: int = 0
    rate: float = 0.0
    burst: int = 1
    within_s: float = 0.0
    expected: Sequence[str] = ()
    background: bool = False

    @property
    def what(self) -> Problem:
        """Problem of the calls."""
        return PROBLEMS[self.problem]

    @property
    def is_open(self) -> bool:
        """Whether calls are due at a rate."""
        return self.callers == 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Flows that run at once.

    of_peak  rate of its first flow as a multiple of what its callers get in a closed loop; 0 for
             flows as they stand
    """

    name: str
    summary: str
    flows: tuple[Flow, ...]
    of_peak: float = 0.0


SCENARIOS = {
    name: Scenario(name, flows=tuple(Flow(**flow) for flow in fields.pop("flows")), **fields)
    for name, fields in _TABLES["scenarios"].items()
}


def changed(
    scenario: Scenario, *, rate: float | None = None, callers: int | None = None
) -> Scenario:
    """Return the scenario at a rate, or with so many callers.

    A rate makes open loops, callers make closed ones. Each flow has its share, and at least one
    caller. An overload is measured with the callers, and stays an open loop.
    """
    if rate is None and callers is None:
        return scenario
    whole = sum(flow.callers or flow.rate for flow in scenario.flows if not flow.background)

    def change(flow: Flow) -> Flow:
        if flow.background:
            return flow
        share = (flow.callers or flow.rate) / whole
        if rate is not None:
            return replace(flow, callers=0, rate=rate * share)
        return replace(flow, callers=max(1, round((callers or 0) * share)), rate=0.0, burst=1)

    of_peak = 0.0 if callers is None else scenario.of_peak
    return replace(scenario, flows=tuple(map(change, scenario.flows)), of_peak=of_peak)
