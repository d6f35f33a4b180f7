"""A network changes, drops, swaps and repeats bytes, and no call with checksums gets other bits.

    PYTHONPATH=tests python -m chaos.checksums [--calls 2000] [--seed 0] [--without]

Small calls, streams and evaluate_many of both clients go through a relay that damages some of the
blocks it carries, in both directions. Ends with status 1 if a result is wrong or a call hangs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import Client, GradwireError, Item, RetryPolicy, ops
from gradwire_server import LocalClient
from support.clients import AWAITED
from support.relay import relaying
from support.servers import serving

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SMALL, LARGE, ITEMS = (1, 2, 32, 32), (1, 4, 256, 384), 8
# Seconds that a call may take, and one with its retries until it counts as hung.
_TIMEOUT_S, _PATIENCE_S = 2.0, 60.0
_AT_ONCE = 8
_ONE_IN = 12
_PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=50)

Array = NDArray[Any]


class Damage:
    """Damages one in so many blocks of bytes."""

    def __init__(self, seed: int, *, one_in: int = _ONE_IN) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        self._lock = threading.Lock()
        self._one_in = one_in
        self.done = 0

    def __call__(self, block: bytes) -> bytes:
        """Return the block, or a damaged one."""
        with self._lock:
            # Most blocks of few bytes are frames of HTTP/2 that end the connection when damaged.
            chance = self._one_in if len(block) > 1 << 10 else 16 * self._one_in
            if not block or self._random.randrange(chance):
                return block
            self.done += 1
            return self._random.choice(_WAYS)(block, self._random)


def _flip(block: bytes, draw: random.Random) -> bytes:
    changed = bytearray(block)
    changed[draw.randrange(len(block))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _drop(block: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(block))
    return block[:at] + block[at + draw.randint(1, 64) :]


def _swap(block: bytes, draw: random.Random) -> bytes:
    size = min(draw.choice((1, 4, 16, 1 << 10)), len(block) // 2)
    first = draw.randint(0, len(block) - 2 * size)
    second = draw.randint(first + size, len(block) - size)
    parts = block[first : first + size], block[second : second + size]
    between = block[first + size : second]
    return block[:first] + parts[1] + between + parts[0] + block[second + size :]


def _repeat(block: bytes, draw: random.Random) -> bytes:
    at, size = draw.randrange(len(block)), draw.choice((1, 4, 16, 1 << 10))
    repeated = block[at : at + size]
    # Most of them take the place of other bytes, as a buffer that is sent twice.
    replaced = draw.choice((0, len(repeated), len(repeated)))
    return block[: at + size] + repeated + block[at + size + replaced :]


# A length that changes shifts the frames of HTTP/2 that follow, and mostly ends or blocks the
# connection: those are fewer.
_WAYS = (_flip, _flip, _flip, _swap, _swap, _swap, _repeat, _drop)


@dataclass
class Outcome:
    """Counts of calls, of those that failed or did not end, and of damaged blocks of bytes."""

    calls: int = 0
    wrong: int = 0
    failed: int = 0
    hung: int = 0
    damaged: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])

    @property
    def right(self) -> bool:
        """Whether no result is wrong and no call hangs."""
        return not (self.wrong or self.hung)


def _result_shape(array: Array) -> tuple[int, ...]:
    batch, channels, height, width = array.shape
    return batch, channels, height // 2, width // 2


def run(calls: int, *, seed: int = 0, checksums: bool = True, one_in: int = _ONE_IN) -> Outcome:
    """Make so many calls through a damaging relay; count what came of them."""
    outcome, lock = Outcome(), threading.Lock()
    down, up = Damage(seed, one_in=one_in), Damage(seed + 1, one_in=one_in)
    options: dict[str, Any] = {"timeout_s": _TIMEOUT_S, "retry": _PROMPT, "chunk_bytes": 64 << 10}
    options["checksums"] = checksums
    with (
        serving() as server,
        relaying(server.address) as relay,
        LocalClient() as local,
        Client(relay.address, **options) as client,
        AWAITED(relay.address, **options) as other,
        ThreadPoolExecutor(_AT_ONCE) as at,
    ):
        relay.alter, relay.alter_up = down, up
        ways = list(itertools.product((SMALL, LARGE, (ITEMS, *SMALL)), (client, other)))

        def one(number: int) -> None:
            shape, caller = ways[number % len(ways)]
            array = np.random.default_rng((seed, number)).normal(size=shape).astype(np.float32)
            many = array.ndim > len(SMALL)
            each = array if many else array[None]
            shape = _result_shape(each[0])
            expected = [local.evaluate(LINEAR, x, output_shape=shape).tobytes() for x in each]
            try:
                if many:
                    found = list(caller.evaluate_many(Item(LINEAR, x, shape) for x in each))
                else:
                    found = [caller.evaluate(LINEAR, array, output_shape=shape)]
            except GradwireError as error:
                with lock:
                    outcome.failed += 1
                    outcome.errors[f"{type(error).__name__} {error.reason}".strip()] += 1
                return
            with lock:
                outcome.wrong += [x.tobytes() for x in found] != expected

        for future in [at.submit(one, number) for number in range(calls)]:
            try:
                future.result(_PATIENCE_S)
            except TimeoutError:
                outcome.hung += 1
            outcome.calls += 1
    outcome.damaged = down.done + up.done
    return outcome


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-in", type=int, default=_ONE_IN)
    parser.add_argument("--without", action="store_true", help="calls carry no checksums")
    given = parser.parse_args()
    outcome = run(given.calls, seed=given.seed, checksums=not given.without, one_in=given.one_in)
    print(asdict(outcome))  # noqa: T201
    sys.exit(not outcome.right)


if __name__ == "__main__":
    main()
