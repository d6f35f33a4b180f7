"""Settings of glibc's malloc, and return of freed memory when idle.

glibc returns each large block to the system when it is freed and gets new pages for the next one,
which the system zeroes one by one: for the chunks and buffers of a stream this takes longer than
copying them. docs/benchmarks.md has figures.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Awaitable, Callable
from typing import cast

# Constants of <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# The largest threshold glibc accepts: smaller blocks are not returned one by one.
_LARGEST_BLOCK = 32 << 20
# Each arena but the first keeps its own memory, which malloc_trim(3) does not return.
_ARENAS = 2
# The most bytes requested from the system at once.
_MOST_AHEAD = 64 << 20
# Idle periods after which memory is returned: threads free some a moment after a call's end.
_TRIMS = 2


def keep(nbytes: int) -> bool:
    """Make malloc keep `nbytes` of freed memory in this process; return whether it supports that.

    0 leaves malloc unchanged.
    """
    if not nbytes:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    wanted = {
        _MMAP_THRESHOLD: _LARGEST_BLOCK,
        _TRIM_THRESHOLD: nbytes,
        _TOP_PAD: min(nbytes, _MOST_AHEAD),
        _ARENA_MAX: _ARENAS,
    }
    return all(mallopt(name, value) for name, value in wanted.items())


async def trim_when_idle(
    after_s: float,
    *,
    calls: Callable[[], int],
    is_idle: Callable[[], bool],
    off_loop: Callable[[Callable[[], object]], Awaitable[object]],
) -> None:
    """Return freed memory to the system whenever no call has arrived for a while.

    The C library keeps blocks that were freed in small pieces, and those that threads freed.

    after_s   seconds without calls; 0 disables this
    calls     returns the number of calls so far
    is_idle   returns whether no call is in flight
    off_loop  runs a function in a thread
    """
    trim = _trim()
    if not after_s or trim is None:
        return
    seen = idle = 0
    while True:
        await asyncio.sleep(after_s)
        count = calls()
        idle = idle + 1 if count == seen and is_idle() else 0
        seen = count
        if seen and 1 <= idle <= _TRIMS:
            await off_loop(trim)


def _trim() -> Callable[[], object] | None:
    """Return glibc's malloc_trim(3), or None with another C library."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: cast("int", function(0))
