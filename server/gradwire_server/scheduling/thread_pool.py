"""The computing threads, and delivery of their results to the event loop.

A computing thread needs the GIL around every operation, and gets it late from a busy event loop.
asyncio's call_soon_threadsafe() writes to a socket and releases the GIL for that, so that the
thread has to wait for it again. Here the GIL is held during the write, of eight bytes, which never
blocks.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, TypeVar

T = TypeVar("T")

_Write = Callable[[int, int], int]


def _eventfd_write() -> _Write | None:
    """Return eventfd_write() of the C library, to be called with the GIL held."""
    if sys.platform != "linux":
        return None
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
    found: _Write = kind(("eventfd_write", ctypes.PyDLL(None)))
    return found


_write = _eventfd_write()


def compute_pool(threads: int, *, niceness: int) -> ThreadPoolExecutor:
    """Return a pool of threads with a lower priority than the event loop.

    The event loop takes little time, and every call waits for it; threads take all time there is.

    niceness  added to the event loop's, on Linux; with 10 a thread has a ninth of its weight when
              both want a core
    """
    pool = ThreadPoolExecutor(
        threads,
        thread_name_prefix="gradwire-compute",
        initializer=partial(_stand_back, niceness),
    )
    # Start all threads now: starting one needs memory, which may be lacking during a call.
    started = Barrier(threads)
    for one in [pool.submit(started.wait) for _ in range(threads)]:
        one.result()
    return pool


def _stand_back(niceness: int) -> None:
    # Elsewhere the niceness is one of all threads. Threads that this one starts inherit it.
    if sys.platform == "linux":
        os.nice(niceness)


def submit(
    pool: ThreadPoolExecutor, work: Callable[[], T]
) -> tuple[Future[None], asyncio.Future[T]]:
    """Run work in a thread; return a future of its end, and one of its outcome for the loop.

    Cancelling the first one cancels work that has not begun, and its outcome.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    mailbox = _mailboxes.get(loop) or _Mailbox(loop)
    done = pool.submit(_do, work, outcome, mailbox)
    done.add_done_callback(partial(_pass_on, outcome, mailbox))
    return done, outcome


def _do(work: Callable[[], T], outcome: asyncio.Future[T], mailbox: _Mailbox) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is awaited
        mailbox.put(partial(_fail, outcome, error))
    else:
        mailbox.put(partial(_succeed, outcome, result))


def _pass_on(outcome: asyncio.Future[Any], mailbox: _Mailbox, done: Future[None]) -> None:
    if done.cancelled():
        mailbox.put(outcome.cancel)


def _succeed(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)


class _Mailbox:
    """Calls that other threads request from an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._loop = weakref.ref(loop)
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if _write else -1
        if _write:
            loop.add_reader(self._wakes, self._take)
            weakref.finalize(loop, os.close, self._wakes)
        _mailboxes[loop] = self

    def put(self, call: Callable[[], object]) -> None:
        """Make the loop run the call; a closed loop ignores it."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            return
        if _write is None:
            loop.call_soon_threadsafe(call)
            return
        self._calls.append(call)
        _write(self._wakes, 1)

    def _take(self) -> None:
        os.eventfd_read(self._wakes)
        while self._calls:
            self._calls.popleft()()


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = (
    weakref.WeakKeyDictionary()
)
