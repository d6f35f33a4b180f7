"""Number of replicas, by the load of the serving ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import Report

# Consecutive looks that must find too few replicas, so that one burst has no effect.
_LOOKS = 2
# An event loop this busy is the bottleneck; calls that wait for it are in no queue of the server.
_LOOP_FULL = 0.9
# A replica goes if the remaining ones would be at most this busy.
_ROOMY = 0.6


class Scaling:
    """Scaling rule: up at most twofold at once, down one by one.

    A replica goes when fewer replicas would have been enough for long.

    wanted  number of replicas
    """

    def __init__(
        self, deployment: Deployment, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deployment = deployment
        self._clock = clock
        self._short = 0
        self._refused = 0
        self._roomy_since: float | None = None
        self.wanted = deployment.least

    def look(self, reports: Sequence[Report]) -> int:
        """Take note of the replicas that serve; return wanted.

        While replicas are still starting, wanted stays: their effect is not known yet.
        """
        before, self._refused = self._refused, sum(one.refused for one in reports)
        if len(reports) != self.wanted:
            self._short, self._roomy_since = 0, None
            return self.wanted
        refused = self._refused > before
        needed = self._needed(reports, refused=refused)
        self._short = self._short + 1 if needed > self.wanted else 0
        if self._short >= _LOOKS:
            self.wanted = min(needed, 2 * self.wanted, self._deployment.most)
            self._short = 0
        if refused or not self._would_do(reports):
            self._roomy_since = None
        elif self._roomy_since is None:
            self._roomy_since = self._clock()
        elif self._clock() - self._roomy_since >= self._deployment.down_after_s:
            self.wanted -= 1
            self._roomy_since = None
        return self.wanted

    def _needed(self, reports: Sequence[Report], *, refused: bool) -> int:
        """Return the number of replicas needed if load spreads over them evenly."""
        if refused:
            # Refused calls do not show how many replicas are missing.
            return 2 * len(reports)
        of_queue = sum(one.waiting for one in reports) / self._deployment.target_queue
        of_loops = sum(one.loop for one in reports) / _LOOP_FULL
        return math.ceil(max(of_queue, of_loops))

    def _would_do(self, reports: Sequence[Report]) -> bool:
        """Return whether one replica fewer would be enough."""
        fewer = len(reports) - 1
        return (
            fewer >= self._deployment.least
            and sum(max(one.busy, one.loop) for one in reports) <= _ROOMY * fewer
            and sum(one.waiting for one in reports) <= self._deployment.target_queue / 2 * fewer
        )
