"""An admission whose clock is set by hand, for tests of who is let in and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

from gradwire_server.errors import ServerFullError
from gradwire_server.scheduling.admission import Admission
from gradwire_server.scheduling.scheduler import Claim, Slot, Turns

WORK = 1000


class Hall:
    """An admission of one thread, with a clock to set.

    Work of 1000 is known to take a second.
    """

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        settings: dict[str, Any] = {
            "max_memory_bytes": 100,
            "max_streams": 1,
            "threads": 1,
            "standing_queue_s": 0.5,
            "clock": lambda: self.now,
            **limits,
        }
        self.admission = Admission(**settings)
        with self.admission.turns(Claim(work=WORK)) as turns:
            turns.spend(1.0)
        self._stack = ExitStack()
        self._waiting = list[asyncio.Task[Slot]]()

    def enter(self, *, work: int = WORK, **claim: Any) -> Turns:
        """Let an evaluation in for as long as the test takes."""
        return self._stack.enter_context(self.admission.turns(Claim(work=work, **claim)))

    async def hold(self, **claim: Any) -> Slot:
        """Let an evaluation in and give it a slot."""
        return await self.enter(**claim).slot()

    async def fill(self) -> list[Slot]:
        """Take the slot that computes and the one that is next."""
        return [await self.hold(), await self.hold()]

    async def queue(self, **claim: Any) -> asyncio.Task[Slot]:
        """Let an evaluation in that waits for a slot as long as the test takes."""
        self._waiting.append(waiting(self.hold(**claim)))
        await settle()
        return self._waiting[-1]

    def refused(self, **claim: Any) -> ServerFullError:
        with pytest.raises(ServerFullError) as caught:
            self.enter(**claim)
        return caught.value


def on_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on an event loop of its own, whose end cancels the tasks that are left."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def waiting(slot: Coroutine[Any, Any, Slot]) -> asyncio.Task[Slot]:
    return asyncio.create_task(slot)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def leave(slot: Slot) -> None:
    with slot:
        pass
