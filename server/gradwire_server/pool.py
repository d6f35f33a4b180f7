"""The threads that compute, and how the event loop hears of what they have done.

A thread that computes needs Python's lock around everything it does, and gets it late from a busy
event loop. asyncio's own way to tell a loop writes to a socket and gives the lock up for that, so
that the thread has to wait for it once more before it can go on. Here it is kept for the write, of
eight bytes that never block.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier, Semaphore, Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from gradwire_server.plans.interruption import AbandonedError

T = TypeVar("T")

_Write = Callable[[int, int], int]


def _eventfd_write() -> _Write | None:
    """Find the function of the C library, to be called with Python's lock held."""
    if sys.platform != "linux":
        return None
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
    found: _Write = kind(("eventfd_write", ctypes.PyDLL(None)))
    return found


_write = _eventfd_write()


def compute_pool(threads: int, *, niceness: int) -> ThreadPoolExecutor:
    """Return a pool of so many threads that let the event loop go first.

    Who answers takes little time, and everybody waits for it; who computes takes all there is.

    niceness  above the event loop's, on Linux; with 10 they have a ninth of its weight where both
              want a core
    """
    pool = ThreadPoolExecutor(
        threads,
        thread_name_prefix="gradwire-compute",
        initializer=partial(_stand_back, niceness),
    )
    # All start now: a thread wants memory for that, of which a call may find none.
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
    """Have a thread do work; return the end of it, and its outcome for the running loop.

    Work that has not begun can be canceled by its end, and then its outcome is, too.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    mailbox = _mailboxes.get(loop) or _Mailbox(loop)
    done = pool.submit(_do, work, outcome, mailbox)
    done.add_done_callback(partial(_pass_on, outcome, mailbox))
    return done, outcome


class TurnedWork(Generic[T]):
    """Work that is done a turn at a time, in a thread of its own that waits between turns.

    Whoever calls turn() waits meanwhile, so that never more threads run than call it. As a context
    it ends what has begun and is not done.

    work    takes a check to be called again and again: it waits where a turn is over, and raises
            AbandonedError where no other follows
    turn_s  seconds of a turn, which lasts to the next check
    """

    def __init__(self, work: Callable[[Callable[[], None]], T], *, turn_s: float) -> None:
        self._work = work
        self._turn_s = turn_s
        self._until = 0.0
        self._abandoned = False
        self._begins, self._ends = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._outcome: Future[T] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._abandoned = True
        self._begins.release()

    def turn(self) -> bool:
        """Go on for a turn; return whether there is more to do."""
        self._until = time.perf_counter() + self._turn_s
        if self._thread is None:
            self._thread = Thread(target=self._run, name="gradwire-tables", daemon=True)
            self._thread.start()
        else:
            self._begins.release()
        self._ends.acquire()
        return not self._outcome.done()

    def result(self) -> T:
        """Return what the work returned, or raise what it raised; it is done."""
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._work(self._check))
        except AbandonedError:
            # Its traceback would keep the tables.
            self._outcome.set_exception(AbandonedError())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._outcome.set_exception(error)
        finally:
            self._ends.release()

    def _check(self) -> None:
        if not self._abandoned and time.perf_counter() >= self._until:
            self._ends.release()
            self._begins.acquire()
        if self._abandoned:
            raise AbandonedError


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
    """What a loop is to call, from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._loop = weakref.ref(loop)
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if _write else -1
        if _write:
            loop.add_reader(self._wakes, self._take)
            weakref.finalize(loop, os.close, self._wakes)
        _mailboxes[loop] = self

    def put(self, call: Callable[[], object]) -> None:
        """Have the loop call it. A loop that is closed has no use for it."""
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
