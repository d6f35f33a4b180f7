"""Tasks that run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any


async def watched(
    work: Coroutine[None, None, None],
    watch: Coroutine[None, None, None],
    *,
    beside: Iterable[asyncio.Task[None]],
) -> None:
    """Run work to its end, unless its watch fails.

    beside  tasks whose errors are raised too; they need not end, and are not ended
    """
    own = [asyncio.ensure_future(work), asyncio.ensure_future(watch)]
    waiting = {*own, *beside}
    ended = set[asyncio.Task[None]]()
    try:
        while own[0] in waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = [task.exception() for task in ended if not task.cancelled()]
            errors = [error for error in failed if error is not None]
            del failed
            if errors:
                raise errors.pop()
    finally:
        await end(own)
        # The error's traceback holds this frame: a reference back to the error would keep both, and
        # the steps' buffers in the frames below, alive until a garbage collection.
        beside = ()
        own.clear()
        waiting.clear()
        ended.clear()


async def first(*awaited: asyncio.Event | asyncio.Future[Any]) -> None:
    """Wait for the first of several events and futures.

    The others go on.
    """
    waiting = {one for one in awaited if isinstance(one, asyncio.Future)}
    waits = [asyncio.ensure_future(one.wait()) for one in awaited if isinstance(one, asyncio.Event)]
    try:
        await asyncio.wait({*waiting, *waits}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancel(waits)


def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them all."""
    for task in tasks:
        task.cancel()


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel them all, and wait for their end."""
    cancel(tasks)
    await asyncio.gather(*tasks, return_exceptions=True)
