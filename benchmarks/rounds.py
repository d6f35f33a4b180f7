"""Timing of contestants in turn, round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """Times of all contestants for one case.

    nbytes   of output gradient and input gradient together
    seconds  per call, [contestant][round]
    notes    which implementation each contestant was
    skipped  why the others did not run, or their wrong results
    """

    case: str
    kind: str
    src: list[int]
    dst: list[int]
    dtype: str
    nbytes: int
    seconds: dict[str, list[float]]
    notes: dict[str, str]
    skipped: dict[str, str]

    def rate(self, name: str) -> float | None:
        """GB/s of a contestant, read and written, by its median round."""
        times = self.seconds.get(name)
        return self.nbytes / statistics.median(times) / 1e9 if times else None

    def faster(self, name: str, than: str) -> float | None:
        """Ratio of a contestant's speed to another's.

        It is the median of common rounds; None without them.
        """
        if name not in self.seconds or than not in self.seconds:
            return None
        return ratio(self.seconds[than], self.seconds[name])


class Runs(Protocol):
    """A contestant."""

    @property
    def name(self) -> str:
        """Unique name of the contestant."""
        ...

    @property
    def run(self) -> Callable[[], object]:
        """Function that computes once."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of a measurement.

    rounds    at most so many
    sample_s  a sample repeats its call for so long, once at least, and is the median of the calls
    warm_s    untimed calls before a sample, if a call is shorter: others leave other caches
    budget_s  a slow contestant takes part in as many rounds as fit in so long, once at least
    settle_s  pause before a sample: OpenMP's threads wait in a loop for a while
    """

    rounds: int = 5
    sample_s: float = 0.03
    warm_s: float = 0.06
    budget_s: float = 0.4
    settle_s: float = 0.0


def samples(
    contestants: Sequence[Runs], first: Mapping[str, float], pace: Pace
) -> dict[str, list[float]]:
    """Return seconds per call, [contestant][round].

    The order is reversed from round to round. Slow contestants miss the later rounds. first is the
    time of an earlier call of each.
    """
    first = {one.name: first[one.name] for one in contestants}
    # Calls so slow that a second one would add no information.
    seconds = {name: [t] if t > pace.budget_s else [] for name, t in first.items()}
    most = {name: max(1, int(pace.budget_s / max(t, pace.sample_s))) for name, t in first.items()}
    for number in range(pace.rounds):
        order = contestants if number % 2 else contestants[::-1]
        for one in order:
            if len(seconds[one.name]) < min(number + 1, most[one.name]):
                time.sleep(pace.settle_s)
                seconds[one.name].append(_sample(one.run, first[one.name], pace))
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ratio(seconds: Sequence[float], ours: Sequence[float]) -> float:
    """Return the median over the common rounds of seconds over ours."""
    return statistics.median(a / b for a, b in zip(seconds, ours, strict=False))


def _sample(run: Callable[[], object], expected_s: float, pace: Pace) -> float:
    until = time.perf_counter() + pace.warm_s
    while expected_s < pace.sample_s and time.perf_counter() < until:
        run()
    times = [timed(run)]
    total = times[0]
    while total < pace.sample_s:
        times.append(timed(run))
        total += times[-1]
    return statistics.median(times)
