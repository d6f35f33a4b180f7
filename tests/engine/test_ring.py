"""Buffers that are used again are left alone as long as they are in use."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.engine import Ring


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=60))
def test_as_many_buffers_as_were_asked_for_keep_their_bytes(count: int, sizes: list[int]) -> None:
    ring = Ring(count)
    in_use: deque[tuple[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]] = deque(maxlen=count)
    for number, size in enumerate(sizes):
        buffer = ring.take(size)
        assert buffer.shape == (size,)
        buffer[:] = number
        # One without bytes holds nothing, and may not make others give up what they hold.
        if size:
            in_use.append((number, buffer))
        assert all((held == owner).all() for owner, held in in_use)


def test_buffers_are_used_again() -> None:
    ring = Ring(2)
    first, second, third = (ring.take(size) for size in (8, 8, 5))
    assert np.shares_memory(first, third)
    assert not np.shares_memory(first, second)
