"""How many replicas there are to be, by how busy those are that serve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from gradwire_ray.deployment import Deployment
from gradwire_ray.load import Load

# So many looks in a row have to agree that there are too few: one burst is none.
_LOOKS = 2
# An event loop that is that busy is the bottleneck, and what waits for it is in no queue of ours.
_LOOP_FULL = 0.9
# How busy fewer replicas may be, so that one can go.
_ROOMY = 0.6


class Scaling:
    """Up at once, at most twofold; down one at a time, when fewer would have done for long.

    wanted  replicas there are to be
    """

    def __init__(
        self, deployment: Deployment, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deployment = deployment
        self._clock = clock
        self._short = 0
        self._roomy_since: float | None = None
        self.wanted = deployment.least

    def look(self, loads: Sequence[Load], *, refused: int) -> int:
        """Take note of those that serve, and of calls refused since the last look; return wanted.

        As long as some are still to come, nothing is decided: their effect is not known.
        """
        if len(loads) != self.wanted:
            self._short, self._roomy_since = 0, None
            return self.wanted
        needed = _needed(loads, self._deployment.target_queue, refused=refused)
        self._short = self._short + 1 if needed > self.wanted else 0
        if self._short >= _LOOKS:
            self.wanted = min(needed, 2 * self.wanted, self._deployment.most)
            self._short = 0
        if refused or not self._would_do(loads):
            self._roomy_since = None
        elif self._roomy_since is None:
            self._roomy_since = self._clock()
        elif self._clock() - self._roomy_since >= self._deployment.down_after_s:
            self.wanted -= 1
            self._roomy_since = None
        return self.wanted

    def _would_do(self, loads: Sequence[Load]) -> bool:
        """Whether one replica fewer would do."""
        fewer = len(loads) - 1
        return (
            fewer >= self._deployment.least
            and sum(max(load.busy, load.loop) for load in loads) <= _ROOMY * fewer
            and sum(load.waiting for load in loads) <= self._deployment.target_queue / 2 * fewer
        )


def _needed(loads: Sequence[Load], target_queue: float, *, refused: int) -> int:
    """Return how many replicas it would take, were load to spread over them."""
    if refused:
        # How much more there is than what was let in, nobody knows.
        return 2 * len(loads)
    of_queue = sum(load.waiting for load in loads) / target_queue
    of_loops = sum(load.loop for load in loads) / _LOOP_FULL
    return math.ceil(max(of_queue, of_loops))
