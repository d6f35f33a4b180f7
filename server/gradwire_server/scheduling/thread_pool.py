"""The computing threads."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

# Added to the event loop's niceness: a thread has a ninth of its weight when both want a core.
NICENESS = 10


def compute_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads of low priority.

    On Linux, their priority is lower than the event loop's. The event loop takes little time, and
    every call waits for it; threads take all time there is.
    """
    pool = ThreadPoolExecutor(
        threads, thread_name_prefix="gradwire-compute", initializer=_stand_back
    )
    # Start all threads now: starting one needs memory, which may be lacking during a call.
    started = Barrier(threads)
    for one in [pool.submit(started.wait) for _ in range(threads)]:
        one.result()
    return pool


def _stand_back() -> None:
    # Elsewhere the niceness is one of all threads. Threads that this one starts inherit it.
    if sys.platform == "linux":
        os.nice(NICENESS)
