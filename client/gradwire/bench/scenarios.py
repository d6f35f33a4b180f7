"""The scenarios: which calls are made at once, how, and what may come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gradwire.bench.problems import PROBLEMS, Problem

Manner = Literal["plain", "cancelled", "hurried", "slow", "many"]

# What an overload is of what the server can do.
OVERLOAD: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Calls of one kind.

    problem     what is evaluated: a name of PROBLEMS
    manner      plain; cancelled: by its caller, after a random time up to within_s; hurried: with a
                deadline of within_s; slow: read with pauses of within_s before every message; many:
                so many `items` by one EvaluateMany
    callers     of a closed loop, each calls as soon as it has its result; 0 for an open loop
    rate        calls per second of an open loop; 0 for a closed one
    burst       calls due at once, as many fewer times
    expected    gRPC statuses besides OK that are no failure here
    background  whether --rate and --concurrency leave it alone: who suffers from the others
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
        """What is evaluated."""
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
