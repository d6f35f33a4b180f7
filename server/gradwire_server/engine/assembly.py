"""Assembly of arriving input bytes into the pieces that steps need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gradwire_server.engine.prepared import Bytes, Prepared
from gradwire_server.engine.tiling import Step


class Ring:
    """A ring of reused buffers.

    count  number of buffers; each is reused after this many calls of take()
    """

    def __init__(self, count: int) -> None:
        self._buffers: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * count
        self._next = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an uninitialized buffer of nbytes.

        An empty one does not advance the ring.
        """
        if not nbytes:
            return np.empty(0, np.uint8)
        place, self._next = self._next, (self._next + 1) % len(self._buffers)
        if len(self._buffers[place]) < nbytes:
            self._buffers[place] = np.empty(nbytes, np.uint8)
        return self._buffers[place][:nbytes]


class OutputAssembler:
    """Collector of consecutive results of steps, which yields pieces of a wanted range.

    wanted  bytes of the result to yield
    size    bytes of a piece, at least; more if a step has more
    held    pieces that are still in use when the next one begins
    """

    def __init__(self, wanted: range, size: int, *, held: int) -> None:
        self._wanted, self._size = wanted, size
        self._ring = Ring(held + 1)
        self._buffer: Bytes = np.empty(0, np.uint8)
        self._offset = self._filled = 0

    def fits(self, nbytes: int) -> bool:
        """Whether a result of so many bytes has room in the present piece."""
        return not self._filled or self._filled + nbytes <= len(self._buffer)

    def take(self, offset: int, nbytes: int) -> Bytes:
        """Return uninitialized memory for a step's result, which must fit.

        offset  of the result's first byte
        """
        if not self._filled:
            self._offset = offset
            self._buffer = self._ring.take(max(self._size, nbytes) if nbytes else 0)
        first, self._filled = self._filled, self._filled + nbytes
        return self._buffer[first : self._filled]

    def piece(self) -> tuple[int, Bytes]:
        """End the present piece; return the offset and the bytes that are wanted of it."""
        first = max(self._offset, self._wanted.start)
        stop = max(first, min(self._offset + self._filled, self._wanted.stop))
        self._filled = 0
        return first, self._buffer[first - self._offset : stop - self._offset]


class InputAssembler:
    """Collector of consecutive input bytes, which yields complete steps.

    A step is complete once all its bytes have arrived. Holds the arrived bytes of one step at most.
    Bytes shared by overlapping steps are copied; a range within one chunk is a view of the chunk.
    A step of several slices ends with the chunk if the chunk ends with a slice and has half of the
    step's bytes: they need no copy together with the next chunk's.

    stop  end of the input bytes that are needed
    held  steps whose bytes are still in use when the next step's begin to arrive
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        resume_from: int = 0,
        stop_before: int | None = None,
        held: int = 1,
    ) -> None:
        self._ring = Ring(held + 1)
        self.stop = prepared.input_stop(stop_before or prepared.output.wire_bytes)
        self._slice_bytes = prepared.input_slice_bytes
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
            piece = self._ended(self._next, base, self.position)
            if not piece.fill(chunk, base, self._last, self._ring):
                return
            yield piece.step, piece.data
            self._last, self._next = piece, next(self._pieces, None)
        self._last = None

    def _ended(self, piece: _Piece, base: int, end: int) -> _Piece:
        """Return the piece, or its slices that the chunk completes.

        Half of the piece must be there. The rest becomes the next piece.

        base, end  range of the chunk's bytes
        """
        arrived = end - piece.start
        if (
            not self._slice_bytes
            or piece.start < base
            or not (piece.stop - piece.start) // 2 <= arrived < piece.stop - piece.start
            or end % self._slice_bytes
        ):
            return piece
        at = end // self._slice_bytes
        rest = _Piece(replace(piece.step, outer_first=at), end, piece.stop)
        self._pieces = chain((rest,), self._pieces)
        return _Piece(replace(piece.step, outer_stop=at), piece.start, end)


class _Piece:
    """Input bytes start .. stop - 1 of one step.

    The first `_filled` of them have arrived.
    """

    def __init__(self, step: Step, start: int, stop: int) -> None:
        self.step, self.start, self.stop = step, start, stop
        self.data: Bytes = np.empty(0, np.uint8)
        self._filled = 0

    def fill(self, chunk: Bytes, base: int, last: _Piece | None, ring: Ring) -> bool:
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
            self._begin(last, ring)
        first = self.start + self._filled
        stop = min(end, self.stop)
        if stop > first:
            self.data[self._filled : stop - self.start] = chunk[first - base : stop - base]
            self._filled = stop - self.start
        return self._filled == self.stop - self.start

    def _begin(self, last: _Piece | None, ring: Ring) -> None:
        self.data = ring.take(self.stop - self.start)
        if last is not None and last.stop > self.start:
            self._filled = min(last.stop, self.stop) - self.start
            offset = self.start - last.start
            self.data[: self._filled] = last.data[offset : offset + self._filled]
