"""How much freed memory the C library's malloc keeps for later.

glibc hands each large block back to the system when it is freed and gets new pages for the next,
which the system fills with zeros one by one: for the chunks and buffers of a stream that takes
longer than to copy them. docs/benchmarks.md has figures.
"""

from __future__ import annotations

import ctypes

# Of <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# The most that glibc takes: blocks of less are not handed back one by one.
_LARGEST_BLOCK = 32 << 20
# Each but the first keeps its own share, which malloc_trim(3) leaves alone.
_ARENAS = 2
# Taken from the system at once, at most.
_MOST_AHEAD = 64 << 20


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
