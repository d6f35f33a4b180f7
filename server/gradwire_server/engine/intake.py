"""Calls whose requests the event loop reads, when there are more of them than it can do.

A request has to be read and decoded before anyone knows what it asks for, and the loop that does
that is one thread. While it is behind, it takes in as many requests at once as it is through with
in `max_queue_s`, by how fast it really is; the rest is refused unread. A caller with less than its
share of those taken in is let in beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager

from gradwire_server.engine.pace import Appointments, Drain

# Taken in however slow the loop is: some are read, some computed, some answered.
LEAST = 8
# A loop that is so late, of late, has more to do than it can; one that is back at this has not.
_BEHIND_S = 0.001
_IN_TIME_S = 0.0003
# What the newest measurement weighs in the lag.
_WEIGHT = 0.2


class Intake:
    """Who is being taken in. Used from one event loop only; knows no clock.

    lag_s      seconds that the loop is late, of late
    is_behind  whether it has more to do than it can

    refusals   counts who is refused, as "unread"
    """

    def __init__(self, *, max_queue_s: float, refusals: Counter[str]) -> None:
        self._max_queue_s = max_queue_s
        self._refusals = refusals
        self._inside: dict[Hashable, Hashable] = {}
        self._peers: Counter[Hashable] = Counter()
        self._drain = Drain()
        self._appointments = Appointments()
        self.lag_s = 0.0
        self.is_behind = False

    def __len__(self) -> int:
        """Return how many are being taken in."""
        return len(self._inside)

    def note_lag(self, lag_s: float) -> None:
        """Note how late the loop was just now."""
        self.lag_s += _WEIGHT * (lag_s - self.lag_s)
        self.is_behind = self.lag_s > (_IN_TIME_S if self.is_behind else _BEHIND_S)

    @property
    def most(self) -> float:
        """Requests taken in at once while the loop is behind; infinite before it was measured."""
        each_s = self._drain.seconds_for()
        return max(LEAST, self._max_queue_s // each_s) if each_s else math.inf

    def enter(self, call: Hashable, *, peer: Hashable, now: float) -> bool:
        """Take a call in, or refuse it."""
        if self.is_behind and not self._has_room(peer):
            self._refusals["unread"] += 1
            return False
        self._drain.enter(now)
        self._inside[call] = peer
        self._peers[peer] += 1
        return True

    def leave(self, call: Hashable, *, now: float) -> None:
        """Note that a call that was taken in is over."""
        self._remove(call)
        self._drain.leave(now, empty=not self._inside)

    @contextmanager
    def aside(self, call: Hashable, *, clock: Callable[[], float]) -> Generator[None]:
        """Leave a call out of account that keeps nobody busy; it stays in."""
        peer = self._remove(call)
        self._drain.pause(empty=not self._inside)
        try:
            yield
        finally:
            self._drain.enter(clock())
            self._inside[call] = peer
            self._peers[peer] += 1

    def retry_after_s(self, now: float) -> float:
        """Return in how many seconds one who was refused shall come back."""
        each_s = self._drain.seconds_for() or 0.0
        return self._appointments.give_s(now, wait_s=len(self) * each_s, spacing_s=each_s)

    def _remove(self, call: Hashable) -> Hashable:
        peer = self._inside.pop(call)
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        return peer

    def _has_room(self, peer: Hashable) -> bool:
        most = self.most
        if len(self) < most:
            return True
        callers = len(self._peers.keys() | {peer})
        return len(self) < 2 * most and self._peers[peer] * callers < most
