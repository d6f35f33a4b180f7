"""Pool of channels: selects the one for each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradwire._transport.replicas import Replicas
from gradwire.errors import CallCancelledError

T = TypeVar("T")

# Seconds for which a connection is avoided after a failure; longer than grpc waits to reconnect.
AVOIDED_S = 1.5


@dataclass(slots=True, eq=False)
class PooledChannel(Generic[T]):
    """A connection and its calls.

    connection     None before its first call
    calls          number of calls that use it
    avoided_until  on the clock of the pool
    retired        whether its target was removed; it closes with its last call
    """

    target: str
    connection: T | None = None
    calls: int = 0
    avoided_until: float = 0.0
    retired: bool = False


class Pool(Generic[T]):
    """Connections to one or more targets, each opened when a call first takes it.

    A call takes the one with the fewest calls. Among equals targets rotate, and within a target the
    first one is taken, so that sequential calls share a connection. One on which a call has just
    failed is avoided, and so are the others of its target.

    close_one  closes a connection of a removed target, without waiting
    replicas   source of changing targets, if any
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
        self._seats: list[PooledChannel[T]] = [
            PooledChannel(one) for _ in range(connections) for one in targets
        ]
        self._retired: list[PooledChannel[T]] = []
        if replicas is not None:
            replicas.tell(self.renew)

    def take(self) -> tuple[PooledChannel[T], T]:
        """Return a connection for a call, to be given back.

        Raises CallCancelledError after close(), UnavailableError without a known target.
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

    def give_back(self, seat: PooledChannel[T], *, failed: bool) -> None:
        """End a call's use of a connection.

        failed  whether to avoid the connection for a while
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
        """Replace the targets.

        Connections to remaining targets stay open. Others take no new call, and close with their
        last one.
        """
        with self._lock:
            if self._closed:
                return
            before: dict[str, list[PooledChannel[T]]] = {}
            for seat in self._seats:
                before.setdefault(seat.target, []).append(seat)
            kept = {one: before.pop(one, []) for one in targets}
            self._seats = [
                kept[one][number] if kept[one] else PooledChannel(one)
                for number in range(self._connections)
                for one in targets
            ]
            self.targets, self._turn = len(targets), 0
            gone = [seat for seats in before.values() for seat in seats]
            for seat in gone:
                seat.retired = True
            self._retired += [seat for seat in gone if seat.calls]
        self._close_all([seat for seat in gone if not seat.calls])

    def _close_all(self, seats: list[PooledChannel[T]]) -> None:
        if self._close_one is not None:
            for seat in seats:
                if seat.connection is not None:
                    self._close_one(seat.connection)

    def sound_targets(self) -> int:
        """Return the number of targets without a recent failure; all if every one has failed."""
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

    def _least_busy(self) -> PooledChannel[T]:
        seats = self._seats
        if self.targets > 1:
            self._turn = (self._turn + 1) % self.targets
            seats = seats[self._turn :] + seats[: self._turn]
        if self._avoided:
            now = self._clock()
            failed = {seat.target for seat in seats if seat.avoided_until > now}
            self._avoided = bool(failed)
            # Other connections of a failed target would probably fail too.
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
