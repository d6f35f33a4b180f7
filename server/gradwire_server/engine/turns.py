"""What an evaluation claims of the slots, and its turns in them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from gradwire_server.engine.slots import Slot, Slots

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
    """

    work: int
    part: float = 1.0
    peer: Hashable = None
    deadline: float = math.inf
    paced: bool = False


class Turns:
    """The turns of one evaluation, one after the other.

    seconds  spent so far
    left_s   estimated seconds that still wait for slots
    large    whether it shares with large work
    """

    def __init__(
        self, claim: Claim, slots: Slots, numbers: Iterator[int], *, seconds: float
    ) -> None:
        self.claim = claim
        self.seconds = 0.0
        self.left_s = seconds * claim.part if claim.paced else seconds
        self.large = seconds > TURN_S
        self._slots = slots
        self._numbers = numbers
        self._cost_s = min(self.left_s, TURN_S)
        self._firm = claim.paced
        self._stand()

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
        """Note how long a turn took. Any thread may, while it holds the slot."""
        self.seconds += seconds
        if not self.claim.paced:
            self.left_s = max(0.0, self.left_s - seconds)
