"""Assembly of arriving input bytes into the pieces that steps need."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire_server.engine.prepared import Bytes, Prepared
from gradwire_server.engine.tiling import Step


class InputAssembler:
    """Collector of consecutive input bytes, which yields complete steps.

    A step is complete once all its bytes have arrived. Holds the arrived bytes of one step at most.
    Bytes shared by overlapping steps are copied; a range within one chunk is a view of the chunk.

    stop  end of the input bytes that are needed
    """

    def __init__(
        self, prepared: Prepared, *, resume_from: int = 0, stop_before: int | None = None
    ) -> None:
        self.stop = prepared.input_stop(stop_before or prepared.output.wire_bytes)
        self._pieces = (
            (step, *prepared.input_range(step)) for step in prepared.steps(resume_from, stop_before)
        )
        self._next = next(self._pieces, None)
        # A new stream starts at byte 0; its client does not wait for the needed range.
        self.position = 0 if not resume_from else self._next[1] if self._next else self.stop
        # Bytes of the last step or the next one: from _start on, arrived up to _end.
        self._data: Bytes = np.empty(0, np.uint8)
        self._start = self._end = 0

    @property
    def complete(self) -> bool:
        """Whether all needed bytes have arrived."""
        return self.position == self.stop

    def feed(self, chunk: Bytes) -> Iterator[tuple[Step, Bytes]]:
        """Yield the steps that can run now.

        Exhaust the iterator before the next chunk.
        """
        base, self.position = self.position, self.position + len(chunk)
        while self._next is not None:
            step, start, stop = self._next
            if base <= start and stop <= self.position:
                self._data = chunk[start - base : stop - base]
                self._start, self._end = start, stop
            elif start >= self.position:
                return  # no memory before bytes arrive
            elif (start, stop - start) != (self._start, len(self._data)):
                self._begin(start, stop)
            first, last = self._end, min(stop, self.position)
            if last > first:
                some = chunk[first - base : last - base]
                self._data[first - start : last - start] = some
                self._end = last
            if self._end < stop:
                return
            yield step, self._data
            self._next = next(self._pieces, None)

    def _begin(self, start: int, stop: int) -> None:
        """Begin a step with the bytes that the last one has too."""
        shared = self._data[start - self._start :]
        self._data = np.empty(stop - start, np.uint8)
        self._data[: len(shared)] = shared
        self._start, self._end = start, start + len(shared)
