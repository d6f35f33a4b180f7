"""Tasks that run at once and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


def note_error(task: asyncio.Task[Any]) -> None:
    """Take note of an error that nobody waits for once the stream has ended."""
    if not task.cancelled():
        task.exception()


async def together(*parts: Coroutine[None, None, None]) -> None:
    """Run parts at once; when one fails, end the others and raise its error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        errors = [error for error in ended if error is not None]
        del ended
        if errors:
            raise errors.pop()
    finally:
        cancel(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        # The error's traceback holds this frame: what leads back to the error would keep both, and
        # the steps' buffers in the frames below, until the garbage collector comes by.
        tasks.clear()


async def first(*awaited: asyncio.Event | asyncio.Future[Any]) -> None:
    """Wait for the first of several events and futures; the others go on."""
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
