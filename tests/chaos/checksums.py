"""A network changes, drops, swaps and repeats bytes, and no call with checksums gets other bits.

    PYTHONPATH=tests python -m chaos.checksums [CALLS] [--without]

Small calls, streams and evaluate_many of both clients go through a relay that damages some of the
blocks it carries, in both directions; --without, calls carry no checksums. Ends with status 1 if a
result is wrong or a call hangs.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np

from gradwire import Client, GradwireError, Item, RetryPolicy
from gradwire_server import LocalClient
from support.clients import AWAITED, BILINEAR, half
from support.relay import relaying
from support.servers import serving

# Of one request, and of one with several items.
SHAPES = ((1, 2, 32, 32), (1, 4, 256, 384), (8, 1, 2, 32, 32))
# Seconds that a call may take with its retries until it counts as hung.
_PATIENCE_S = 60.0
_OPTIONS: dict[str, Any] = {
    "timeout_s": 2.0,
    "retry": RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=50),
    "chunk_bytes": 64 << 10,
}


def damage(seed: int, counts: Counter[str]) -> Callable[[bytes], bytes]:
    """Return what changes, drops, swaps or repeats bytes of some blocks, and counts these."""
    draw = random.Random(seed)  # noqa: S311 - repeatable
    lock = threading.Lock()

    def damaged(block: bytes) -> bytes:
        with lock:
            # Most blocks of few bytes are frames of HTTP/2 that end the connection when damaged.
            if not block or draw.randrange(12 if len(block) > 1 << 10 else 192):
                return block
            counts["damaged"] += 1
            # A length that changes shifts the frames of HTTP/2 that follow, and mostly ends or
            # blocks the connection: those are fewer.
            way = draw.choice(["flip"] * 3 + ["swap"] * 3 + ["repeat"] * 2 + ["insert", "drop"])
            at, size = draw.randrange(len(block)), draw.choice((1, 4, 16, 1 << 10))
            before, piece, behind = block[:at], block[at : at + size], block[at + size :]
            end = {
                "flip": bytes([piece[0] ^ 1 << draw.randrange(8)]) + piece[1:] + behind,
                "swap": behind[:size] + piece + behind[size:],
                "repeat": piece + piece + behind[size:],  # as a buffer that is sent twice
                "insert": piece + piece + behind,
                "drop": behind,
            }
            return before + end[way]

    return damaged


def run(calls: int, *, checksums: bool = True) -> Counter[str]:
    """Make so many calls; count them, the wrong, failed and hung ones, and damaged blocks."""
    options = {**_OPTIONS, "checksums": checksums}
    with (
        serving() as server,
        relaying(server.address) as relay,
        LocalClient() as local,
        Client(relay.address, **options) as client,
        AWAITED(relay.address, **options) as other,
        ThreadPoolExecutor(8) as at_once,
    ):
        counts = Counter[str]()
        relay.alter, relay.alter_up = damage(calls, counts), damage(calls + 1, counts)
        ways = list(product(SHAPES, (client, other)))

        def outcome(number: int) -> str:
            shape, caller = ways[number % len(ways)]
            array = np.random.default_rng((calls, number)).normal(size=shape).astype(np.float32)
            items = [Item(BILINEAR, x, half(x)) for x in array.reshape(-1, *shape[-4:])]
            try:
                if len(items) > 1:
                    found = list(caller.evaluate_many(items))
                else:
                    found = [caller.evaluate(BILINEAR, array, output_shape=half(array))]
            except GradwireError:
                return "failed"
            expected = list(local.evaluate_many(items))
            same = [x.tobytes() for x in found] == [x.tobytes() for x in expected]
            return "right" if same else "wrong"

        for future in [at_once.submit(outcome, number) for number in range(calls)]:
            try:
                counts[future.result(_PATIENCE_S)] += 1
            except TimeoutError:
                counts["hung"] += 1
    return counts


if __name__ == "__main__":
    NUMBERS = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    FOUND = run(*NUMBERS or [2000], checksums="--without" not in sys.argv)
    sys.stdout.write(f"{dict(FOUND)}\n")
    sys.exit(bool(FOUND["wrong"] or FOUND["hung"]))
