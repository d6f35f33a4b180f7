"""Where connections are cut: at any byte of either direction."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

# Within the greeting and the first calls; within or between large tensors.
_EARLY, _LATE = (1, 1 << 16), (1 << 16, 4 << 20)
# Of those that are cut early. With many more a caller could hardly have a call through.
_PART = 0.25


def drawn(seed: int) -> tuple[Iterator[int | None], Iterator[int | None]]:
    """Return the bytes after which each connection is cut: from the server, and from the client.

    Each is cut in one of the two; on a scale of logarithms positions are uniform.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret

    def pairs() -> Iterator[tuple[int | None, int | None]]:
        while True:
            ends = _EARLY if chance.random() < _PART else _LATE
            place = int(math.exp(chance.uniform(*map(math.log, ends))))
            yield (place, None) if chance.random() < 0.5 else (None, place)

    down, up = itertools.tee(pairs())
    return (pair[0] for pair in down), (pair[1] for pair in up)
