"""Rounds of contestants in turn; rows of medians and ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.environments import MissingPeerError, say
from benchmarks.peers.loops import CallSample
from benchmarks.peers.processes import wait_idle

# A round waits until the machine has been idle for so long, or until the limit.
IDLE_S: Final = 3
IDLE_LIMIT_S: Final = 15
# Cores that other processes may keep busy during a sample, which is repeated otherwise.
OTHERS_LIMIT: Final = 0.25
_TRIES: Final = 3

Take = Callable[[int], CallSample]


@dataclass(frozen=True, slots=True)
class Peer:
    """A server with a client.

    `take` measures it with so many calls in flight.
    """

    name: str
    take: Take


def compare(
    contestants: Sequence[Peer], *, in_flight: Sequence[int], rounds: int, limit_s: float
) -> list[dict[str, Any]]:
    """Return a row for each contestant and number in flight.

    The first contestant is the base of ratios. Rounds reverse the order in turn. A contestant that
    fails is reported and left out from there. No sample starts after limit_s.
    """
    until = time.monotonic() + limit_s
    samples: dict[tuple[int, str, int], CallSample] = {}
    failed: set[str] = set()
    for one in range(rounds):
        for calls in in_flight:
            if time.monotonic() < until:
                wait_idle(IDLE_S, IDLE_LIMIT_S)
            for contestant in contestants if one % 2 == 0 else reversed(contestants):
                if contestant.name in failed or time.monotonic() > until:
                    continue
                try:
                    sample = _clean(contestant, calls)
                except MissingPeerError as error:
                    say(f"{contestant.name}: left out: {error}")
                    failed.add(contestant.name)
                    continue
                if sample is None:
                    say(f"{contestant.name}, {calls} in flight: dropped, other processes were busy")
                else:
                    samples[calls, contestant.name, one] = sample
        if time.monotonic() > until:
            say(f"round {one + 1} of {rounds} is the last: the limit of time is over")
            break
        say(f"round {one + 1} of {rounds}")
    return [
        row
        for calls in in_flight
        for contestant in contestants
        if (row := _row(samples, calls, contestant.name, contestants[0].name, rounds))
    ]


def ratio(pairs: Iterable[tuple[float | None, float | None]]) -> list[float] | None:
    """Return the median, least and largest ratio of pairs.

    Pairs with a missing value do not count.
    """
    found = [one / other for one, other in pairs if one is not None and other is not None]
    return [statistics.median(found), min(found), max(found)] if found else None


def _clean(contestant: Peer, calls: int) -> CallSample | None:
    """Return a sample without other processes, or None.

    None means that each try was disturbed.
    """
    for _ in range(_TRIES):
        sample = contestant.take(calls)
        if sample.others < OTHERS_LIMIT:
            return sample
        wait_idle(IDLE_S, IDLE_LIMIT_S)
    return None


def _row(
    samples: dict[tuple[int, str, int], CallSample], calls: int, name: str, base: str, rounds: int
) -> dict[str, Any]:
    found = [samples[calls, name, one] for one in range(rounds) if (calls, name, one) in samples]
    if not found:
        return {}

    def against(field: str) -> list[float] | None:
        def value(whose: str, one: int) -> float | None:
            sample = samples.get((calls, whose, one))
            return None if sample is None else getattr(sample, field)

        return ratio((value(name, one), value(base, one)) for one in range(rounds))

    row: dict[str, Any] = {"in_flight": calls, "contestant": name, "samples": len(found)}
    for field in ("rate", "p50_ms", "p99_ms", "server_ms", "client_ms", "others"):
        row[field] = statistics.median(getattr(sample, field) for sample in found)
    return {**row, **{f"{field}_ratio": against(field) for field in ("rate", "p50_ms")}}
