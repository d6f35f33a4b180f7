"""Slots to compute in, and those who wait for one, in the order of a fair queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from gradwire_server.scheduling.fair_queue import FairQueue

Grant = asyncio.Future[None]


class Slots:
    """So many slots. Used from one event loop only.

    taken     those in which something computes

    refusals  counts who is dropped because it is too late, as "late"
    """

    def __init__(
        self, count: int, *, clock: Callable[[], float], refusals: Counter[str] | None = None
    ) -> None:
        self.count = count
        self._refusals: Counter[str] = Counter() if refusals is None else refusals
        self.clock = clock
        self._queue: FairQueue[Grant] = FairQueue()
        self.taken = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._queue)

    def take_free(self, deadline: float) -> bool:
        """Take a slot if one is free; return whether one was.

        Raises TimeoutError where the deadline has passed.
        """
        if deadline <= self.clock():
            self._refusals["late"] += 1
            raise TimeoutError
        if self.taken < self.count and not self._queue:
            self.taken += 1
            return True
        return False

    async def take(
        self,
        number: int,
        *,
        peer: Hashable,
        cost_s: float,
        needs_s: float,
        large: bool,
        firm: bool,
        due: float,
        deadline: float,
    ) -> None:
        """Wait for a slot; what the arguments mean is told by fair_queue.Place.

        Raises TimeoutError where the deadline cannot be met any more, and what drop() says.
        """
        grant = asyncio.get_running_loop().create_future()
        place = self._queue.push(
            grant,
            number=number,
            peer=peer,
            cost_s=cost_s,
            needs_s=needs_s,
            large=large,
            firm=firm,
            due=due,
            deadline=deadline,
        )
        try:
            await grant
        except asyncio.CancelledError:
            granted = grant.done() and not grant.cancelled() and grant.exception() is None
            if not self._queue.remove(place) and granted:
                self.free()
            raise

    def free(self) -> None:
        """Give a slot back: who is next has it."""
        self.taken -= 1
        for place in self._queue.expire(self.clock()):
            self._refusals["late"] += 1
            _fail(place.item, TimeoutError())
        while self._queue and self.taken < self.count:
            grant = self._queue.pop().item
            if not grant.done():
                self.taken += 1
                grant.set_result(None)

    def drop(self, peer: Hashable, error: Exception) -> bool:
        """Drop the last of those of a caller who have had no turn; return whether there was one."""
        last = self._queue.last_of(peer)
        if last is None:
            return False
        self._queue.remove(last)
        _fail(last.item, error)
        return True


class Slot:
    """A slot that is held. It outlives its holder while a thread is still at work in it."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._work: Future[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._work is None or self._work.done():
            self._leave()
            return
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            # A loop that is closed has no use for slots.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._leave)

        self._work.add_done_callback(tell)

    def until(self, work: Future[Any]) -> None:
        """Hold the slot until this is done, even if nobody waits for it any more."""
        self._work = work


def _fail(grant: Grant, error: Exception) -> None:
    if not grant.done():
        grant.set_exception(error)
