"""Memory that is used again: new pages cost more than the bytes that are written to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Ring:
    """Buffers that are taken in turn.

    count  how many of them are in use at once: as many takes later a buffer is given out again
    """

    def __init__(self, count: int) -> None:
        self._buffers: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * count
        self._next = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a buffer of so many bytes, with whatever is in it. One of none is not counted."""
        if not nbytes:
            return np.empty(0, np.uint8)
        place, self._next = self._next, (self._next + 1) % len(self._buffers)
        if len(self._buffers[place]) < nbytes:
            self._buffers[place] = np.empty(nbytes, np.uint8)
        return self._buffers[place][:nbytes]
