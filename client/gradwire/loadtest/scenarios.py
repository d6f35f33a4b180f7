"""Scenarios of a load test: their calls, the evaluations and the expected bits.

Inputs are made by exact arithmetic, so that they are the same on every machine, and so must be the
results: their digests stand here. A load test therefore finds wrong results, also of a server that
gives the same wrong ones each time.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gradwire import ops
from gradwire._core.options import STREAM_THRESHOLD_BYTES
from gradwire.ops import Operator

Array = NDArray[Any]
Shape = tuple[int, ...]

# Knuth's multiplier for hashing by multiplication (The Art of Computer Programming, 6.4).
_MULTIPLIER: Final = 2654435761


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
        mixed = (np.arange(1, count + 1, dtype=np.uint64) * _MULTIPLIER) & 0xFFFFFFFF
        numbers = ((mixed >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5).astype(np.float32)
        if self.broadcast:
            return np.broadcast_to(numbers[0], self.sent)
        return numbers.reshape(self.sent)

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


_BILINEAR: Final = ops.InterpolateBackward(mode="bilinear", data_format="NCX")

PROBLEMS: Final = {
    problem.name: problem
    for problem in (
        Problem(
            "tiny",
            _BILINEAR,
            (1, 3, 16, 16),
            (1, 3, 8, 8),
            "1e4cb42a085be44a10dc9b171523125299d99ecf2574da943ed7bed27c1ccfdb",
        ),
        # The largest that the SDK sends as one message.
        Problem(
            "medium",
            ops.TorchUpsampleBackward(mode="bicubic"),
            (1, 4, 128, 128),
            (1, 4, 64, 64),
            "b25e9d1271c25e447350133f4950e3dc26c8743fd6d5b9ef015304c965d65ca2",
        ),
        Problem(
            "large",
            _BILINEAR,
            (1, 16, 512, 512),
            (1, 16, 256, 256),
            "1ef7aa67d205c6d2d40912e3787d3492841cc8df9ce508b49400ac03a63336ad",
        ),
        Problem(
            "enlarging",
            ops.DmlResample(interpolation_mode="linear"),
            (1, 16, 256, 256),
            (1, 16, 512, 512),
            "6c1edb86386697711b2a456ca105c4736fd8eabbc90e85a2770f59df556c3e3f",
        ),
        # Some milliseconds of computing, and next to nothing to move.
        Problem(
            "work",
            ops.DmlResampleGrad(interpolation_mode="linear"),
            (8192, 8192),
            (64, 64),
            "6e0d4fdb9ce1c40e66135a7f53623a5e11751946e9b5513d7eab2525aa4fa76e",
            broadcast=True,
        ),
    )
}


def digest_of(result: Array) -> str:
    """Return the SHA-256 of an array's little-endian elements, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(result, "<f4").tobytes()).hexdigest()


class Judge:
    """Tells right results from wrong ones; any thread may ask.

    The first right one is known by its digest; those after it are compared with it, which is a
    hundred times faster.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._lock = threading.Lock()
        self._right: Array | None = None

    def is_right(self, result: Array) -> bool:
        """Whether a result has the bits that it must have."""
        right = self._right
        if right is not None:
            return np.array_equal(result.view(np.uint32), right)
        with self._lock:
            if digest_of(result) != self._problem.digest:
                return False
            self._right = np.ascontiguousarray(result).view(np.uint32).copy()
            return True


Manner = Literal["plain", "cancelled", "hurried", "slow", "many"]

# Rate of an overload, as a multiple of the server's peak.
OVERLOAD: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Calls of one kind.

    problem     name of the evaluation in PROBLEMS
    manner      plain; cancelled: by its caller, after a random time up to within_s; hurried: with a
                deadline of within_s; slow: read with pauses of within_s before every message; many:
                so many `items` by one EvaluateMany
    callers     of a closed loop, each calls as soon as it has its result; 0 for an open loop
    rate        calls per second of an open loop; 0 for a closed one
    burst       calls due at once, as many fewer times
    expected    gRPC statuses besides OK that are no failure here
    background  whether --rate and --concurrency leave it unchanged: the victims of the others
    """

    name: str
    problem: str
    manner: Manner = "plain"
    callers: int = 0
    rate: float = 0.0
    burst: int = 1
    within_s: float = 0.0
    items: int = 1
    expected: tuple[str, ...] = ()
    background: bool = False

    @property
    def what(self) -> Problem:
        """The evaluation."""
        return PROBLEMS[self.problem]

    @property
    def is_open(self) -> bool:
        """Whether calls are due at a rate."""
        return self.callers == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Flows at once.

    of_peak  rate of its first flow as a multiple of what its callers get in a closed loop; 0 for
             flows as they stand
    """

    name: str
    summary: str
    flows: tuple[Flow, ...]
    of_peak: float = 0.0


_BYSTANDERS: Final = Flow(name="bystanders", problem="tiny", rate=50.0, background=True)

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="tiny",
            summary="3 KiB there, 768 bytes back: what a call costs",
            flows=(Flow(name="tiny", problem="tiny", callers=4),),
        ),
        Scenario(
            name="medium",
            summary="256 KiB there, 64 KiB back, as one message each",
            flows=(Flow(name="medium", problem="medium", callers=4),),
        ),
        Scenario(
            name="large",
            summary="16 MiB there, 4 MiB back, as streams",
            flows=(Flow(name="large", problem="large", callers=2),),
        ),
        Scenario(
            name="mixed",
            summary="tiny and medium calls and large streams at once",
            flows=(
                Flow(name="tiny", problem="tiny", callers=4),
                Flow(name="medium", problem="medium", callers=2),
                Flow(name="large", problem="large", callers=1),
            ),
        ),
        Scenario(
            name="overload",
            summary="calls due at three times the rate that the server can serve",
            flows=(
                Flow(
                    name="overload",
                    problem="work",
                    callers=8,
                    expected=("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
                ),
            ),
            of_peak=OVERLOAD,
        ),
        Scenario(
            name="slow-readers",
            summary="streams whose readers take their time, beside tiny calls",
            flows=(
                Flow(
                    name="slow readers",
                    problem="enlarging",
                    manner="slow",
                    callers=8,
                    within_s=0.1,
                ),
                _BYSTANDERS,
            ),
        ),
        Scenario(
            name="cancellations",
            summary="calls and streams that their callers cancel, beside tiny calls",
            flows=(
                Flow(
                    name="cancelled calls",
                    problem="medium",
                    manner="cancelled",
                    callers=4,
                    within_s=0.02,
                    expected=("CANCELLED",),
                ),
                Flow(
                    name="cancelled streams",
                    problem="large",
                    manner="cancelled",
                    callers=2,
                    within_s=0.2,
                    expected=("CANCELLED",),
                ),
                _BYSTANDERS,
            ),
        ),
        Scenario(
            name="deadline-storms",
            summary="bursts of calls that have a twentieth of a second, beside tiny calls",
            flows=(
                Flow(
                    name="hurried",
                    problem="work",
                    manner="hurried",
                    rate=64.0,
                    burst=64,
                    within_s=0.05,
                    expected=("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"),
                ),
                _BYSTANDERS,
            ),
        ),
    )
}


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """Return it as an open loop of so many calls per second."""
    shares = _shares(scenario.flows)
    flows = (
        flow if flow.background else replace(flow, callers=0, rate=rate * share)
        for flow, share in zip(scenario.flows, shares, strict=True)
    )
    return replace(scenario, flows=tuple(flows), of_peak=0.0)


def with_callers(scenario: Scenario, callers: int) -> Scenario:
    """Return it as a closed loop of so many callers, each flow with at least one.

    An overload is found with them, and stays an open loop.
    """
    shares = _shares(scenario.flows)
    flows = (
        flow
        if flow.background
        else replace(flow, callers=max(1, round(callers * share)), rate=0.0, burst=1)
        for flow, share in zip(scenario.flows, shares, strict=True)
    )
    return replace(scenario, flows=tuple(flows))


def _shares(flows: Sequence[Flow]) -> list[float]:
    weights = [0.0 if flow.background else flow.callers or flow.rate for flow in flows]
    return [weight / sum(weights) for weight in weights]
