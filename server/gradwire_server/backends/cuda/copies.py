"""Copies between arrays of the host and the device, on one stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from gradwire_server.backends.cuda.device import Array, Bytes, Mark, Stream
from gradwire_server.backends.cuda.parts import Span, pieces
from gradwire_server.backends.cuda.registered import Registered


class Copies:
    """Arrays go through two halves of pinned memory by turns, or straight where they are pinned.

    While the device copies from one half, or to it, the other one is filled, or emptied.

    pinned  memory of an even size
    """

    def __init__(self, stream: Stream, pinned: Bytes, registered: Registered) -> None:
        self._stream, self._registered = stream, registered
        self._half = pinned.size // 2
        self._halves = (pinned[: self._half], pinned[self._half :])
        self._turn, self._filled = 0, 0
        self._left: list[Mark | None] = [None, None]
        self._targets = list[tuple[Array, Bytes]]()
        # Half, what is in it, and when; None where that is the last of the stream's tasks.
        self._coming = deque[tuple[int, list[Span], Mark | None]]()
        self._rest: Iterator[tuple[int, list[Span]]] = iter(())
        self._owners = list[Bytes]()

    def up(self, address: int, arrays: Sequence[Array]) -> None:
        """Copy arrays to the device, one behind the other; they may change afterwards.

        But one that is registered must stay as it is until finish().
        """
        if self._is_direct(arrays):
            self._stream.up(address, _bytes(arrays[0]))
            return
        sources = [_bytes(np.ascontiguousarray(one)) for one in arrays]
        if len(sources) == 1 and sources[0].nbytes <= self._half:
            room = self._room(sources[0].nbytes)
            room[:] = sources[0]
            self._stream.up(address, room)
            return
        for piece in pieces([one.nbytes for one in sources], most=self._half):
            room = self._room(sum(span.nbytes for span in piece))
            at = 0
            for span in piece:
                room[at : at + span.nbytes] = sources[span.array][span.first : span.stop]
                at += span.nbytes
            self._stream.up(address, room)
            address += room.nbytes

    def down(self, arrays: Sequence[Array], address: int) -> None:
        """Begin to copy from the device to arrays that lie there one behind the other.

        They are written by finish(). Nothing else is copied before.
        """
        if self._is_direct(arrays):
            self._stream.down(_bytes(arrays[0]), address)
            return
        self._targets = [
            (one, _bytes(one if one.flags.c_contiguous else np.empty(one.shape, one.dtype)))
            for one in arrays
        ]
        if len(arrays) == 1 and arrays[0].nbytes <= self._half:
            self._stream.down(self._halves[0][: arrays[0].nbytes], address)
            self._coming.append((0, [Span(0, 0, arrays[0].nbytes)], None))
            return
        self._rest = self._places(address)
        for half in range(2):
            self._fetch(half)

    def finish(self) -> None:
        """Wait until all is done; results are in their arrays then."""
        if not self._coming or self._coming[0][2] is None:
            self._stream.synchronize()
        while self._coming:
            half, piece, mark = self._coming.popleft()
            if mark is not None:
                mark.wait()
            at = 0
            for span in piece:
                target = self._targets[span.array][1]
                target[span.first : span.stop] = self._halves[half][at : at + span.nbytes]
                at += span.nbytes
            self._fetch(half)
        for array, target in self._targets:
            if not array.flags.c_contiguous:
                array[...] = target.view(array.dtype).reshape(array.shape)
        self._forget()

    def abandon(self) -> None:
        """Wait until nothing is pending; results are lost."""
        try:
            self._stream.synchronize()
        finally:
            self._forget()

    def _room(self, nbytes: int) -> Bytes:
        """Return so much of a half that the device reads nothing from any more."""
        if self._filled + nbytes > self._half:
            self._left[self._turn] = self._stream.mark()
            self._turn, self._filled = 1 - self._turn, 0
            mark = self._left[self._turn]
            if mark is not None:
                mark.wait()
        self._filled += nbytes
        return self._halves[self._turn][self._filled - nbytes : self._filled]

    def _places(self, address: int) -> Iterator[tuple[int, list[Span]]]:
        for piece in pieces([target.nbytes for _, target in self._targets], most=self._half):
            yield address, piece
            address += sum(span.nbytes for span in piece)

    def _fetch(self, half: int) -> None:
        """Let the next piece come; the stream reads what is in the half before it writes there."""
        following = next(self._rest, None)
        if following is None:
            return
        address, piece = following
        room = self._halves[half][: sum(span.nbytes for span in piece)]
        self._stream.down(room, address)
        self._coming.append((half, piece, self._stream.mark()))

    def _is_direct(self, arrays: Sequence[Array]) -> bool:
        """Whether it is one array, in memory that is registered, which stays so until finish()."""
        if len(arrays) != 1:
            return False
        owner = self._registered.owner_of(arrays[0])
        if owner is None:
            return False
        self._owners.append(owner)
        return True

    def _forget(self) -> None:
        self._turn, self._filled = 0, 0
        self._left = [None, None]
        self._targets, self._rest = [], iter(())
        self._coming.clear()
        self._owners.clear()


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
