"""Where connections are cut: at any byte of either direction."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

# Within the greeting and the first calls.
_EARLY = (1, 1 << 16)


def drawn(
    seed: int, *, early: float = 0.25, late: tuple[int, int] = (1 << 16, 4 << 20)
) -> tuple[Iterator[int | None], Iterator[int | None]]:
    """Return the bytes after which each connection is cut: from the server, and from the client.

    Each is cut in one of the two; on a scale of logarithms positions are uniform.

    early  part of them that is cut within the first 64 KiB
    late   first and last byte after which the others are
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret

    def pairs() -> Iterator[tuple[int | None, int | None]]:
        while True:
            ends = _EARLY if chance.random() < early else late
            place = int(math.exp(chance.uniform(*map(math.log, ends))))
            yield (place, None) if chance.random() < 0.5 else (None, place)

    down, up = itertools.tee(pairs())
    return (pair[0] for pair in down), (pair[1] for pair in up)
