"""The work that was let in and is not done yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable
from contextlib import contextmanager

from gradwire_server.engine.turns import TURN_S, Turns


class Backlog:
    """Estimated seconds of work, divided as in fair_queue.py: by callers, then small and large."""

    def __init__(self) -> None:
        self._peers: defaultdict[Hashable, set[Turns]] = defaultdict(set)

    @contextmanager
    def holding(self, turns: Turns) -> Generator[None]:
        """Count an evaluation in."""
        peer = turns.claim.peer
        self._peers[peer].add(turns)
        try:
            yield
        finally:
            self._peers[peer].remove(turns)
            if not self._peers[peer]:
                del self._peers[peer]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(map(self.of, list(self._peers)))

    def of(self, peer: Hashable) -> float:
        """Return one caller's."""
        return sum(turns.left_s for turns in self._peers.get(peer, ()))

    def ahead_s(self, peer: Hashable, *, seconds: float) -> float:
        """Return the work that is done before a newcomer's, if nobody has a deadline."""
        shares = [0.0, 0.0]
        for turns in self._peers.get(peer, ()):
            shares[turns.large] += turns.left_s
        large = seconds > TURN_S
        before = shares[large] + min(shares[not large], shares[large] + seconds)
        others = (self.of(name) for name in self._peers if name != peer)
        # While a caller is served so much, none of the others is served more.
        return before + sum(min(other, before + seconds) for other in others)

    def heaviest(self) -> Hashable:
        """Return the caller with most of it; None where there is none."""
        return max(self._peers, key=self.of, default=None)
