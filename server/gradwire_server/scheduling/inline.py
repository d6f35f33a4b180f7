"""Decides by time which evaluations are computed on the event loop."""

from __future__ import annotations

import math
from collections.abc import Callable

from gradwire_server.engine.prepared import Prepared

# NumPy takes half of it for the smallest evaluation; a round trip to a thread takes some 0.1 ms.
_MOST_S = 500e-6
# While the event loop computes, no other call is served.
_MOST_OF_A_TURN_S = 1e-3
_CARRIED_S = 100e-6


class InlineWork:
    """Admits short evaluations to the event loop, for a millisecond per loop iteration ("turn").

    rate       multiplications per second of the backend, used until an evaluation has been
               measured; 0 admits nothing
    most_work  multiplications above which a backend may wait for more than a processor
    next_turn  calls a function in the next loop iteration
    """

    def __init__(
        self,
        rate: float,
        *,
        most_work: float = math.inf,
        next_turn: Callable[[Callable[[], None]], object],
    ) -> None:
        self.rate = rate
        self._most_work = most_work
        self._next_turn = next_turn
        self._spent_s = 0.0

    def estimate_s(self, prepared: Prepared) -> float:
        """Return the estimated seconds of one evaluation; by its work until it was measured."""
        measured = prepared.measured
        if measured.seconds is None:
            measured.seconds = prepared.inline_work / self.rate
        return measured.seconds

    def is_short(self, prepared: Prepared) -> bool:
        """Whether such an evaluation is computed on the event loop, in this or a later turn."""
        if not self.rate or prepared.inline_work > self._most_work:
            return False
        return self.estimate_s(prepared) <= _MOST_S

    def admits(self, prepared: Prepared) -> bool:
        """Whether such an evaluation is computed in this turn."""
        if not self.is_short(prepared):
            return False
        return self._spent_s + self.estimate_s(prepared) <= _MOST_OF_A_TURN_S

    def most(self, prepared: Prepared) -> int:
        """Return how many such evaluations are computed in this turn; 0 for none."""
        if not self.is_short(prepared):
            return 0
        return int((_MOST_OF_A_TURN_S - self._spent_s) / max(self.estimate_s(prepared), 1e-9))

    def spend(self, seconds: float) -> None:
        """Count seconds of computation in this turn."""
        before = self._spent_s
        self._spent_s = before + seconds
        # Small amounts carry over to later turns: scheduling a reset takes microseconds.
        if before < _CARRIED_S <= self._spent_s:
            self._next_turn(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent_s = 0.0
