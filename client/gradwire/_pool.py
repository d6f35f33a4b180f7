"""Which of several connections a call takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradwire._resolver import Replicas
from gradwire.errors import CallCancelledError

T = TypeVar("T")

# So long others are taken instead of one on which a call has failed; longer than grpc waits before
# it connects anew.
AVOIDED_S = 1.5


@dataclass(slots=True, eq=False)
class Seat(Generic[T]):
    """A connection and its calls.

    connection     None as long as no call has taken it
    calls          how many have taken it and not given it back
    avoided_until  on the clock of the pool
    retired        whether its target is none any more; it closes with its last call
    """

    target: str
    connection: T | None = None
    calls: int = 0
    avoided_until: float = 0.0
    retired: bool = False


class Pool(Generic[T]):
    """Connections to one or more targets, each opened when a call first takes it.

    A call takes the one with the fewest calls; of equals the first one, so that callers who take
    turns share one connection, but targets take turns. One on which a call has just failed is
    avoided, and rather than its target's other ones those of other targets are taken.

    close_one  closes one whose target is none any more, without waiting
    replicas   tells the targets, if they change
    """

    def __init__(
        self,
        targets: Sequence[str],
        open_one: Callable[[str], T],
        *,
        connections: int,
        close_one: Callable[[T], object] | None = None,
        replicas: Replicas | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_one = open_one
        self._close_one = close_one
        self._replicas = replicas
        self._connections = connections
        self._clock = clock
        self._lock = threading.Lock()
        self.targets = len(targets)
        self._turn = 0
        self._avoided = False
        self._closed = False
        self._seats: list[Seat[T]] = [Seat(one) for _ in range(connections) for one in targets]
        self._retired: list[Seat[T]] = []
        if replicas is not None:
            replicas.tell(self.renew)

    def take(self) -> tuple[Seat[T], T]:
        """Return a connection for a call, which gives it back.

        Raises CallCancelledError after close(), UnavailableError where no target is known.
        """
        if self._replicas is not None:
            self._replicas.freshen()
        with self._lock:
            if self._closed:
                raise CallCancelledError("the client was closed")
            if not self._seats and self._replicas is not None:
                raise self._replicas.failure
            seat = self._least_busy()
            if seat.connection is None:
                seat.connection = self._open_one(seat.target)
            seat.calls += 1
            return seat, seat.connection

    def give_back(self, seat: Seat[T], *, failed: bool) -> None:
        """End a call's use of a connection.

        failed  whether another connection may well do better
        """
        with self._lock:
            seat.calls -= 1
            if failed:
                seat.avoided_until = self._clock() + AVOIDED_S
                self._avoided = True
            done = seat.retired and not seat.calls
            if done:
                self._retired.remove(seat)
        if done:
            self._close_all([seat])
        if failed and self._replicas is not None:
            self._replicas.hurry()

    def renew(self, targets: Sequence[str]) -> None:
        """Connect to these targets from now on.

        Connections to those that stay stay open. The others take no new call, and close with their
        last one.
        """
        with self._lock:
            if self._closed:
                return
            before: dict[str, list[Seat[T]]] = {}
            for seat in self._seats:
                before.setdefault(seat.target, []).append(seat)
            kept = {one: before.pop(one, []) for one in targets}
            self._seats = [
                kept[one][number] if kept[one] else Seat(one)
                for number in range(self._connections)
                for one in targets
            ]
            self.targets, self._turn = len(targets), 0
            gone = [seat for seats in before.values() for seat in seats]
            for seat in gone:
                seat.retired = True
            self._retired += [seat for seat in gone if seat.calls]
        self._close_all([seat for seat in gone if not seat.calls])

    def _close_all(self, seats: list[Seat[T]]) -> None:
        if self._close_one is not None:
            for seat in seats:
                if seat.connection is not None:
                    self._close_one(seat.connection)

    def sound_targets(self) -> int:
        """Count the targets on which no call has failed of late; all where every one has."""
        with self._lock:
            now = self._clock()
            avoided = {seat.target for seat in self._seats if seat.avoided_until > now}
            return self.targets - len(avoided) or self.targets

    def close(self) -> list[T]:
        """Return the connections, for the caller to close; open no other."""
        with self._lock:
            self._closed = True
            seats = self._seats + self._retired
            return [seat.connection for seat in seats if seat.connection is not None]

    def _least_busy(self) -> Seat[T]:
        seats = self._seats
        if self.targets > 1:
            self._turn = (self._turn + 1) % self.targets
            seats = seats[self._turn :] + seats[: self._turn]
        if self._avoided:
            now = self._clock()
            failed = {seat.target for seat in seats if seat.avoided_until > now}
            self._avoided = bool(failed)
            # Where one of a target's connections failed, another one may well lead nowhere either.
            seats = (
                [seat for seat in seats if seat.target not in failed]
                or [seat for seat in seats if seat.avoided_until <= now]
                or seats
            )
        best = seats[0]
        for seat in seats:
            if seat.calls < best.calls:
                best = seat
        return best
