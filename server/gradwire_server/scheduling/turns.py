"""What an evaluation claims of the slots, its turns in them, and the work that all turns leave."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gradwire_server.scheduling.estimator import WorkPace
from gradwire_server.scheduling.scheduler import Slot, Slots

# The longest turn. What takes more than one shares with large work.
TURN_S = 0.005
# How long anyone may be passed by those with nearer deadlines.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an evaluation claims of the slots.

    work      multiplications
    part      of the work in one step, at most 1
    peer      who calls: callers share alike
    deadline  on the monotonic clock
    paced     whether the caller sends the input step by step: it is never refused, and one step
              counts as waiting
    tables    whether tables are built, whose work is told in taps
    """

    work: int
    part: float = 1.0
    peer: Hashable = None
    deadline: float = math.inf
    paced: bool = False
    tables: bool = False


class Backlog:
    """Estimated seconds of work that was let in and is not done yet.

    Kept as fair_queue.py divides it: by callers, and by small and large work.
    """

    def __init__(self) -> None:
        self._peers: dict[Hashable, list[float]] = {}
        self._calls: dict[Hashable, int] = {}

    def enter(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Count work in."""
        self._peers.setdefault(peer, [0.0, 0.0])[large] += seconds
        self._calls[peer] = self._calls.get(peer, 0) + 1

    def shrink(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Note that so much of it is done."""
        self._peers[peer][large] -= seconds

    def leave(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Count out what was left of the work."""
        self._calls[peer] -= 1
        if self._calls[peer]:
            self.shrink(peer, large=large, seconds=seconds)
        else:
            del self._calls[peer], self._peers[peer]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(map(sum, self._peers.values()))

    def of(self, peer: Hashable) -> float:
        """Return one caller's."""
        return sum(self._peers.get(peer, ()))

    def ahead_s(self, peer: Hashable, *, seconds: float, large: bool) -> float:
        """Return the work that is done before a newcomer's, if nobody has a deadline."""
        shares = self._peers.get(peer, (0.0, 0.0))
        before = shares[large] + min(shares[not large], shares[large] + seconds)
        others = (self.of(name) for name in self._peers if name != peer)
        # While a caller is served so much, none of the others is served more.
        return before + sum(min(other, before + seconds) for other in others)

    def heaviest(self) -> Hashable:
        """Return the caller with most of it; None where there is none."""
        return max(self._peers, key=self.of, default=None)


class Turns:
    """The turns of one evaluation, one after the other. As a context it counts as work to do.

    seconds  spent so far
    left_s   estimated seconds that still wait for slots
    large    whether it shares with large work
    """

    def __init__(
        self, claim: Claim, slots: Slots, numbers: Iterator[int], backlog: Backlog, pace: WorkPace
    ) -> None:
        seconds = pace.estimate_s(claim.work)
        self.claim = claim
        self.seconds = 0.0
        self.left_s = seconds * claim.part if claim.paced else seconds
        self.large = seconds > TURN_S
        self._slots, self._numbers, self._backlog, self._pace = slots, numbers, backlog, pace
        self._cost_s = min(self.left_s, TURN_S)
        self._firm = claim.paced
        self._stand()

    def __enter__(self) -> Self:
        self._backlog.enter(self.claim.peer, large=self.large, seconds=self.left_s)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._backlog.leave(self.claim.peer, large=self.large, seconds=self.left_s)
        if self.seconds and exc_type is None:
            self._pace.note(self.claim.work, self.seconds)

    def _stand(self) -> None:
        """Take a place behind those who are here, unless there is a hurry."""
        self._number = next(self._numbers)
        self._due = min(self.claim.deadline, self._slots.clock() + _PATIENCE_S)

    async def slot(self) -> Slot:
        """Wait for a slot, and return it to be held.

        Raises TimeoutError where the deadline cannot be met any more, OverloadedError where the
        first turn has to go to a caller with less.
        """
        if self.claim.paced:
            # Each step anew, or the oldest stream would keep the others out.
            self._stand()
        if not self._slots.take_free(self.claim.deadline):
            await self._slots.take(
                self._number,
                peer=self.claim.peer,
                cost_s=self._cost_s,
                needs_s=self.left_s,
                large=self.large,
                firm=self._firm,
                due=self._due,
                deadline=self.claim.deadline,
            )
        self._firm = True
        return Slot(self._slots.free)

    def spend(self, seconds: float) -> None:
        """Note how long a turn took."""
        self.seconds += seconds
        if not self.claim.paced:
            done = min(seconds, self.left_s)
            self.left_s -= done
            self._backlog.shrink(self.claim.peer, large=self.large, seconds=done)
