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
        self._pieces: Iterator[_Piece] = (
            _Piece(step, *prepared.input_range(step))
            for step in prepared.steps(resume_from, stop_before)
        )
        self._last: _Piece | None = None
        self._next = next(self._pieces, None)
        # A new stream starts at byte 0; its client does not wait for the needed range.
        self.position = 0 if not resume_from else self._next.start if self._next else self.stop

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
            piece = self._next
            if not piece.fill(chunk, base, self._last):
                return
            yield piece.step, piece.data
            self._last, self._next = piece, next(self._pieces, None)
        self._last = None


class _Piece:
    """Input bytes start .. stop - 1 of one step.

    The first `_filled` of them have arrived.
    """

    def __init__(self, step: Step, start: int, stop: int) -> None:
        self.step, self.start, self.stop = step, start, stop
        self.data: Bytes = np.empty(0, np.uint8)
        self._filled = 0

    def fill(self, chunk: Bytes, base: int, last: _Piece | None) -> bool:
        """Take bytes of a chunk; return whether the piece is complete.

        The chunk starts at byte `base`.
        """
        end = base + len(chunk)
        if self.start >= base and self.stop <= end:
            self.data = chunk[self.start - base : self.stop - base]
            return True
        if last is not None and (last.start, last.stop) == (self.start, self.stop):
            self.data = last.data
            return True
        if self.start >= end and self.stop > end:
            return False
        if not self._filled:
            self._begin(last)
        first = self.start + self._filled
        stop = min(end, self.stop)
        if stop > first:
            self.data[self._filled : stop - self.start] = chunk[first - base : stop - base]
            self._filled = stop - self.start
        return self._filled == self.stop - self.start

    def _begin(self, last: _Piece | None) -> None:
        self.data = np.empty(self.stop - self.start, np.uint8)
        if last is not None and last.stop > self.start:
            self._filled = min(last.stop, self.stop) - self.start
            offset = self.start - last.start
            self.data[: self._filled] = last.data[offset : offset + self._filled]
