"""Where connections are cut: at any byte of either direction, early ones as likely as late ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

# Within a connection's greeting, or one of its first large tensors.
_LEAST, _MOST = 1, 1 << 20


def drawn(seed: int) -> tuple[Iterator[int | None], Iterator[int | None]]:
    """Return the bytes after which each connection is cut: from the server, and from the client.

    Each is cut in one of the two; positions are uniform on a scale of logarithms.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret

    def pairs() -> Iterator[tuple[int | None, int | None]]:
        while True:
            place = int(math.exp(chance.uniform(math.log(_LEAST), math.log(_MOST))))
            yield (place, None) if chance.random() < 0.5 else (None, place)

    down, up = itertools.tee(pairs())
    return (pair[0] for pair in down), (pair[1] for pair in up)
