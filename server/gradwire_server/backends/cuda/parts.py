"""How one call is cut: its outer slices into parts, its bytes into pieces.

Outer slices are independent of each other, so that parts may be computed on several streams, one
going up while another is computed and a third comes down. A piece is what goes through pinned
memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Parts that a call is cut into even where it fits in memory: more hide more of the copies.
_WANTED = 4
# Of a smaller part the launches would take longer than the copies do; assumed, not measured.
LEAST_BYTES = 2 << 20


def slices_of_part(outer: int, slice_bytes: int, *, most_bytes: int) -> int:
    """Return how many outer slices a part has; the last part may have fewer.

    outer        slices there are, at least one
    slice_bytes  of what is read for one, or of what is written, whichever is more
    most_bytes   of a part, unless one slice alone has more
    """
    total = outer * slice_bytes
    wanted = min(_WANTED, total // LEAST_BYTES)
    fitting = outer if total <= most_bytes else max(1, most_bytes // slice_bytes)
    return min(fitting, -(-outer // max(1, wanted)))


def ranges(outer: int, slices: int) -> Iterator[tuple[int, int]]:
    """Yield the first slice of each part and the one after its last."""
    for first in range(0, outer, slices):
        yield first, min(first + slices, outer)


def padded(count: int) -> int:
    """Return for how many slices or calls a program is made that computes so many together.

    Powers of 2, so that few programs serve every count.
    """
    return 1 << (count - 1).bit_length()


class Span(NamedTuple):
    """Bytes of one array: its index among several, the first byte, the one after the last."""

    array: int
    first: int
    stop: int

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return self.stop - self.first


def pieces(sizes: Sequence[int], *, most: int) -> Iterator[list[Span]]:
    """Yield pieces, in order, of arrays of so many bytes that follow each other.

    Each has `most` bytes, but for the last, and is made of one span or several.
    """
    piece, room = list[Span](), most
    for array, size in enumerate(sizes):
        first = 0
        while first < size:
            span = Span(array, first, min(size, first + room))
            piece.append(span)
            first, room = span.stop, room - span.nbytes
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece
