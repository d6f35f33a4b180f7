"""What the requests of one stream hold of the server's memory, so that no stream holds all of it.

A stream of many requests reads ahead of what is computed, and each request holds what it needs from
then on. A few are enough to keep every thread at work, whatever they need; of more than those a
stream holds its share of the budget at most.
"""

from __future__ import annotations

from gradwire_server.scheduling.admission import Admission

# One stream's share of the budget.
_SHARE = 1 / 16


class Holdings:
    """Memory that requests of one stream hold. Used from one event loop only.

    few       requests that the stream may hold memory for, whatever they need
    requests  that hold memory, and nbytes of it
    """

    def __init__(self, admission: Admission, *, few: int) -> None:
        self._admission = admission
        self._few = few
        self._share_bytes = int(admission.max_memory_bytes * _SHARE)
        self.requests = 0
        self.nbytes = 0

    def must_wait(self, needed: int) -> bool:
        """Whether a request has to wait for others of this stream to give their memory back."""
        if not self.requests:
            return False
        due = self.requests < self._few or self.nbytes + needed <= self._share_bytes
        return not (due and self._admission.has_room(needed))

    def take(self, needed: int) -> None:
        """Take bytes of the budget for a request; raises OverloadedError as Admission does."""
        self._admission.take_memory(needed)
        self.requests += 1
        self.nbytes += needed

    def free(self, held: int) -> None:
        """Give back what a request held, unless free_all() has."""
        if not self.requests:
            return
        self.requests -= 1
        self.nbytes -= held
        self._admission.free_memory(held)

    def free_all(self) -> None:
        """Give back what is left when the stream ends."""
        if self.requests:
            self._admission.free_memory(self.nbytes)
        self.requests = self.nbytes = 0
