"""Per-thread deadline of the current call, which bounds a backend's waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def computing_until(deadline: float) -> Generator[None]:
    """Set the deadline of this thread's call, on the monotonic clock."""
    _thread.deadline = deadline
    try:
        yield
    finally:
        _thread.deadline = math.inf


def wait_s(most_s: float) -> float:
    """Return the seconds that this thread's call may wait.

    They end at its deadline, and are at most most_s.
    """
    deadline: float = getattr(_thread, "deadline", math.inf)
    return max(0.0, min(most_s, deadline - time.monotonic()))
