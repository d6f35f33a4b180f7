"""Settings of glibc's malloc, and return of freed memory when idle.

glibc returns each large block to the system when it is freed and gets new pages for the next one,
which the system zeroes one by one: for the chunks and buffers of a stream this takes longer than
copying them. docs/benchmarks.md has figures.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

from gradwire_server.scheduling.admission import Admission

# Freed bytes that a worker keeps for later calls, and asks the system for at once.
_KEPT_BYTES = 16 << 20
# Time without calls after which memory is returned.
_IDLE_S = 1.0
# Constants of <malloc.h>, and their values.
_WANTED = {
    -1: _KEPT_BYTES,  # M_TRIM_THRESHOLD
    -2: _KEPT_BYTES,  # M_TOP_PAD
    -3: 32 << 20,  # M_MMAP_THRESHOLD, the largest that glibc accepts
    -8: 2,  # M_ARENA_MAX: each arena keeps memory of its own
}


def keep_freed_memory() -> None:
    """Make malloc keep some freed memory in this process.

    Without glibc, or where an environment variable MALLOC_... sets it up, malloc stays unchanged.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for name, value in _WANTED.items():
        mallopt(name, value)


async def trim_when_idle(admission: Admission, pool: ThreadPoolExecutor) -> None:
    """Return freed memory to the system after a time without calls.

    The C library keeps blocks that were freed in small pieces or by other threads: after large
    streams, twice as much as an idle process needs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    seen = trimmed = 0
    while trim is not None:
        await asyncio.sleep(_IDLE_S)
        before, seen = seen, admission.entered
        if before == seen != trimmed:
            await asyncio.wrap_future(pool.submit(trim, 0))
            trimmed = seen
