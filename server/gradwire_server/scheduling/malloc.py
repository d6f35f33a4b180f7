"""Memory that the C library's malloc keeps, and when it goes back to the system.

glibc hands each large block back to the system when it is freed and gets new pages for the next,
which the system fills with zeros one by one: for the chunks and buffers of a stream that takes
longer than to copy them. docs/benchmarks.md has figures.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Awaitable, Callable
from typing import cast

# Of <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# The most that glibc takes: blocks of less are not handed back one by one.
_LARGEST_BLOCK = 32 << 20
# Each but the first keeps its own share, which malloc_trim(3) leaves alone.
_ARENAS = 2
# Taken from the system at once, at most.
_MOST_AHEAD = 64 << 20
# Idle periods after which memory is handed back: threads free some a moment after a call's end.
_TRIMS = 2


def keep(nbytes: int) -> bool:
    """Have malloc keep so many bytes, in this process; return whether it can be told that.

    0 leaves it as it is.
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
    """Hand freed memory back to the system whenever no call has come for a while.

    The C library keeps blocks that were freed in small pieces, and those that threads freed.

    after_s   seconds without calls; 0 hands back nothing
    calls     returns how many calls have come so far
    is_idle   returns whether none is in flight
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
    """Return glibc's malloc_trim(3); other C libraries have none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: cast("int", function(0))
