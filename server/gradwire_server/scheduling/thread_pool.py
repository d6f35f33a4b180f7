"""The computing threads."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


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


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> tuple[Future[T], asyncio.Future[T]]:
    """Run work in a thread; return its future, and one for the event loop.

    Cancelling either one cancels work that has not begun.
    """
    done = pool.submit(work)
    return done, asyncio.wrap_future(done)
