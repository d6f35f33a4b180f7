"""The threads that compute."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

# Above the event loop's: a ninth of its weight where both want a core. Who answers takes little
# time, and everybody waits for it; who computes takes all there is.
_NICENESS = 10


def compute_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of so many threads that let the event loop go first."""
    return ThreadPoolExecutor(
        threads, thread_name_prefix="gradwire-compute", initializer=_stand_back
    )


def _stand_back() -> None:
    # Elsewhere the niceness is one of all threads. Threads that this one starts inherit it.
    if sys.platform == "linux":
        os.nice(_NICENESS)
