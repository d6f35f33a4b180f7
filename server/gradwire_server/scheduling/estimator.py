"""Measured estimates of work, drain rates, retry delays and queue limits."""

from __future__ import annotations

import math

# Weight of the newest measurement in an exponential mean.
_WEIGHT = 0.1
# The longest retry delay.
_LONGEST_S = 10.0


class WorkPace:
    """Seconds that work takes, from measurements.

    There is one mean for each power of two of work. Before the first measurement all estimates are
    0.
    """

    def __init__(self) -> None:
        self._seconds_each: dict[int, float] = {}

    def note(self, work: int, seconds: float) -> None:
        """Note how many seconds an amount of work took."""
        size = work.bit_length()
        each = seconds / max(1, work)
        known = self._seconds_each.get(size)
        self._seconds_each[size] = each if known is None else known + _WEIGHT * (each - known)

    def estimate_s(self, work: int) -> float:
        """Return the estimated seconds for an amount of work.

        They come from the nearest measured size.
        """
        if not self._seconds_each:
            return 0.0
        size = work.bit_length()
        nearest = min(self._seconds_each, key=lambda known: abs(known - size))
        return self._seconds_each[nearest] * work


class Drain:
    """Drain time of a resource.

    It is measured only while there is something to drain.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0
        self._amount = 0.0

    def enter(self, now: float) -> None:
        """Note an arrival; measuring begins if nothing was there."""
        if self._since is None:
            self._since = now

    def leave(self, now: float, *, amount: float = 1.0, empty: bool) -> None:
        """Note that an amount has left, and whether nothing remains."""
        if self._since is not None:
            first = not self._amount
            weight = 1.0 if first else _WEIGHT
            self._seconds += weight * (now - self._since - self._seconds)
            self._amount += weight * (amount - self._amount)
        self._since = None if empty else now

    def stop(self) -> None:
        """Stop measuring: nothing is left."""
        self._since = None

    def seconds_for(self, amount: float = 1.0, *, now: float = -math.inf) -> float | None:
        """Return the seconds that an amount takes to drain.

        None before the first measurement.

        At least the time since something last drained.
        """
        if not self._amount:
            return None
        still_s = 0.0 if self._since is None else now - self._since
        return max(self._seconds * amount / self._amount, still_s)


class Appointments:
    """Retry delays of refused calls.

    Calls return one after the other, at the drain rate. With equal delays all would return at once.
    The time of a call that does not return is lost.
    """

    def __init__(self) -> None:
        self._last = 0.0

    def give_s(self, now: float, *, wait_s: float, spacing_s: float) -> float:
        """Return the retry delay in seconds.

        wait_s     seconds until the present work has drained
        spacing_s  seconds that the newcomer itself takes
        """
        self._last = max(now + wait_s, self._last) + spacing_s
        self._last = min(self._last, now + _LONGEST_S)
        # Round up to whole milliseconds, but not because of the rounding error of a sum.
        return math.ceil((self._last - now) * 1e3 - 1e-3) / 1e3


# Longest wait in a standing queue. Measured: a fifth of it makes no visible difference.
STANDING_QUEUE_S = 0.005


class QueueLimit:
    """Longest wait allowed to newcomers.

    It is long in a burst, short for a standing queue. During a burst, calls are admitted if they
    are done max_queue_s after the burst began. A queue that lasts longer only delays every call:
    from then on it is kept short, until it is empty and no call has been refused for max_queue_s.

    standing_s  longest wait allowed in a standing queue
    """

    def __init__(self, *, max_queue_s: float, standing_s: float = STANDING_QUEUE_S) -> None:
        self._max_queue_s = max_queue_s
        self._standing_s = min(standing_s, max_queue_s)
        self._began: float | None = None
        self._refused = -math.inf

    def rest(self, now: float) -> None:
        """Note that no call waits."""
        if self._began is not None and now - self._refused > self._max_queue_s:
            self._began = None

    def allowed_s(self, now: float) -> float:
        """Return the longest wait, in seconds, for a new call.

        The call arrives now and has to wait.
        """
        if self._began is None:
            self._began = now
        return max(self._standing_s, self._began + self._max_queue_s - now)

    def note_refusal(self, now: float) -> None:
        """Note that a call was refused.

        It would have waited too long.
        """
        self._refused = now
