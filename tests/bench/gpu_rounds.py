"""Times contestants on a device in turn, so that ratios compare the same moment.

All rounds are asked for before the first is waited for: the device is never idle between them, and
what Python takes to ask is not in its times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu_contestants import Contestant
from bench.gpu_lanes import Lane


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure.

    rounds    of all contestants
    warm      untimed runs of each one before
    ahead     copies asked for first, which keep the device busy until the rounds are asked for
    budget_s  a slow contestant takes part in as many rounds as fit in so long, twice at least
    """

    rounds: int = 25
    warm: int = 3
    ahead: int = 10
    budget_s: float = 0.5


def samples(lane: Lane, contestants: Sequence[Contestant], pace: Pace) -> dict[str, list[float]]:
    """Return seconds of each run, [contestant][round]; slow ones miss the later rounds.

    The order is reversed from round to round.
    """
    most = {one.name: _rounds(lane, one, pace) for one in contestants}
    marks: dict[str, list[tuple[Any, Any]]] = {one.name: [] for one in contestants}
    for one in contestants:
        for _ in range(pace.ahead if one.name == "copy" else 0):
            one.run()
    for number in range(pace.rounds):
        for one in contestants if number % 2 else contestants[::-1]:
            if number < most[one.name]:
                first = lane.mark()
                one.run()
                marks[one.name].append((first, lane.mark()))
    lane.settle()
    return {name: [lane.seconds(*pair) for pair in pairs] for name, pairs in marks.items()}


def _rounds(lane: Lane, one: Contestant, pace: Pace) -> int:
    """Warm up; return how many rounds of one are worth their time."""
    one.run()  # the first call may set up more than memory
    times: list[float] = []
    for _ in range(pace.warm):
        first = lane.mark()
        one.run()
        last = lane.mark()
        lane.settle()
        times.append(lane.seconds(first, last))
        if times[-1] > pace.budget_s:
            break
    slowest = max(statistics.median(times), 1e-9)
    return max(2, min(pace.rounds, int(pace.budget_s / slowest)))
