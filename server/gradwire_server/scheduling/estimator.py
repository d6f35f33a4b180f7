"""How fast this server really is: what work costs, how fast things drain, when to come back."""

from __future__ import annotations

import math

# What the newest measurement weighs in an exponential mean.
_WEIGHT = 0.1
# Nobody is told to stay away for longer.
_LONGEST_S = 10.0


class WorkPace:
    """Seconds that work takes, from what it took. One mean for each power of two of work.

    Before anything was measured nothing costs anything.
    """

    def __init__(self) -> None:
        self._seconds_each: dict[int, float] = {}

    def note(self, work: int, seconds: float) -> None:
        """Note that so much work took so long."""
        size = work.bit_length()
        each = seconds / max(1, work)
        known = self._seconds_each.get(size)
        self._seconds_each[size] = each if known is None else known + _WEIGHT * (each - known)

    def estimate_s(self, work: int) -> float:
        """Return the seconds that so much work will take, by the nearest size that is known."""
        size = work.bit_length()
        each = self._seconds_each.get(size)
        if each is None:
            if not self._seconds_each:
                return 0.0
            nearest = min(self._seconds_each, key=lambda known: abs(known - size))
            each = self._seconds_each[nearest]
        return each * work


class Drain:
    """How long something takes to drain, measured only while there is something to drain."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0
        self._amount = 0.0

    def enter(self, now: float) -> None:
        """Note that something came; measuring begins where nothing was there."""
        if self._since is None:
            self._since = now

    def leave(self, now: float, *, amount: float = 1.0, empty: bool) -> None:
        """Note that an amount has gone, and whether nothing is left."""
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
        """Return how long such an amount takes to go; None before anything was measured.

        At least as long as nothing has gone until now.
        """
        if not self._amount:
            return None
        still_s = 0.0 if self._since is None else now - self._since
        return max(self._seconds * amount / self._amount, still_s)


class Appointments:
    """When those who are refused shall come back: one after the other, as fast as things drain.

    Were all told the same time they would meet again. An appointment that is not kept is lost as
    its time passes.
    """

    def __init__(self) -> None:
        self._last = 0.0

    def give_s(self, now: float, *, wait_s: float, spacing_s: float) -> float:
        """Return in how many seconds to come back.

        wait_s     until what is here has drained
        spacing_s  that the newcomer itself takes
        """
        self._last = max(now + wait_s, self._last) + spacing_s
        self._last = min(self._last, now + _LONGEST_S)
        # Whole milliseconds, and not one more for the rounding of a sum.
        return math.ceil((self._last - now) * 1e3 - 1e-3) / 1e3


class QueueLimit:
    """How long newcomers may have to wait: long where a burst came, short where the queue stands.

    Whoever comes while a burst lasts is let in if that is done max_queue_s after it began. A queue
    that stands for longer only makes everybody wait: from then on it is kept short, until a while
    after nobody waits any more and nobody had to be refused.

    standing_s  what is allowed then
    """

    def __init__(self, *, max_queue_s: float, max_standing_queue_s: float) -> None:
        self._max_queue_s = max_queue_s
        self.standing_s = min(max_standing_queue_s, max_queue_s)
        self._began: float | None = None
        self._refused = -math.inf

    def rest(self, now: float) -> None:
        """Note that nobody waits."""
        if self._began is not None and now - self._refused > self._max_queue_s:
            self._began = None

    def allowed_s(self, now: float) -> float:
        """Return how long one who comes now, and has to wait, may have to."""
        if self._began is None:
            self._began = now
        return max(self.standing_s, self._began + self._max_queue_s - now)

    def note_refusal(self, now: float) -> None:
        """Note that somebody would have had to wait too long."""
        self._refused = now
