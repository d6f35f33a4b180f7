"""Stores past the caches, for results that are larger than what those hold of them.

An ordinary store first reads the line that it is going to overwrite, and so moves twice as many
bytes. After others a fence is due before anybody is told of the results.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, types

from gradwire_server.backends.numba_cpu.simd import clear, copy, load, put_streaming, zeros
from gradwire_server.backends.numba_cpu.vectors import COMPUTE, part

# Only whole lines may go past the caches.
_LINE = 64


@part
def _whole_lines(to, size):
    """First line that lies within some bytes, and one past the last."""
    first = to + (-to & (_LINE - 1))
    return first, max(first, (to + size) & -_LINE)


@cfunc(types.void(*[types.int64] * 6), cache=True)
def stream(rows, step, count, size, result, result_step):
    """Copy rows of so many bytes."""
    for row in range(count):
        source, to = rows + row * step, result + row * result_step
        first, stop = _whole_lines(to, size)
        head = min(first - to, size)
        copy(to, source, head)
        if head < size:
            distance = source - to
            for at in range(first, stop, _LINE):
                put_streaming(at, load(COMPUTE, np.float32, at + distance))
            copy(stop, stop + distance, to + size - stop)


@cfunc(types.void(*[types.int64] * 4), cache=True)
def stream_zeros(count, size, result, result_step):
    """Write rows of so many zero bytes."""
    for row in range(count):
        to = result + row * result_step
        first, stop = _whole_lines(to, size)
        head = min(first - to, size)
        clear(to, head)
        if head < size:
            for at in range(first, stop, _LINE):
                put_streaming(at, zeros(np.float32))
            clear(stop, to + size - stop)


def functions() -> tuple[int, int]:
    """Addresses of the functions that write rows of bytes, and rows of zeros."""
    return int(globals()["stream"].address), int(globals()["stream_zeros"].address)
