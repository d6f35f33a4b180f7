"""Callers that go on calling while a test changes or disturbs the server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, Item, RetryPolicy, Timing, ops
from gradwire_server import LocalClient
from support.raw_calls import PATIENCE_S, wait_until


@dataclass
class Load:
    """What the callers saw until now: calls that ended, and how they failed."""

    calls: int = 0
    failures: list[object] = field(default_factory=list[object])

    def wait_for_more(self, count: int) -> None:
        seen = self.calls + count
        wait_until(lambda: self.calls >= seen)


@contextmanager
def repeated(ask: Callable[[], object], *, threads: int = 3) -> Generator[Load]:
    """Repeat a call, which returns how it failed or None, until the block ends; none may fail."""
    load, over = Load(), threading.Event()

    def repeat() -> None:
        while not over.is_set():
            failure = ask()
            load.calls += 1
            if failure is not None:
                load.failures.append(failure)

    running = [threading.Thread(target=repeat) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield load
    finally:
        over.set()
        for thread in running:
            thread.join()
    assert not load.failures, load.failures


Array = NDArray[Any]
# Between calls of those that leave processors to servers that start.
PAUSE_S = 0.02
# Outlives any start of a server: on a busy machine that takes longer than clients try by default.
PATIENT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.5, max_attempts=100)


class Kind(NamedTuple):
    """A kind of call; shapes are those of the tensor sent and of the one that comes back."""

    operator: ops.Operator
    sent: tuple[int, ...]
    received: tuple[int, ...]


HALVE = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
COPY = ops.DmlResample(interpolation_mode="linear")
KINDS = {
    "unary": Kind(HALVE, (1, 3, 32, 32), (1, 3, 16, 16)),
    "stream": Kind(HALVE, (1, 16, 320, 320), (1, 16, 160, 160)),
    "small stream": Kind(HALVE, (1, 2, 256, 256), (1, 2, 128, 128)),
    # Adds rows to running sums.
    "sums": Kind(HALVE, (1, 1, 3000, 700), (1, 1, 50, 350)),
    "copy": Kind(COPY, (1024, 1024), (1024, 1024)),
    "large": Kind(COPY, (8, 1024, 1024), (8, 1024, 1024)),
}


def problem(kind: Kind) -> tuple[Array, Array]:
    """Return what is sent, and what must come back."""
    array = np.random.default_rng(0).normal(size=kind.sent).astype(np.float32)
    with LocalClient("numpy_cpu") as local:
        return array, local.evaluate(kind.operator, array, output_shape=kind.received)


@dataclass
class Tally:
    """What one caller saw.

    calls    that ended; retried, wrong: of them
    lost     what those raised that brought no result
    """

    calls: int = 0
    retried: int = 0
    wrong: int = 0
    lost: list[str] = field(default_factory=list[str])
    slowest_s: float = 0.0

    def note(self, timing: Timing) -> None:
        self.retried += timing.tries > 1
        self.slowest_s = max(self.slowest_s, timing.total_s)

    def judge(self, result: Array, expected: Array) -> None:
        self.wrong += result.tobytes() != expected.tobytes()

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count a call, which is lost if it raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the call is lost
            self.lost.append(f"{type(error).__name__}: {error}")
        self.calls += 1


class Callers:
    """Threads that call one server until the block ends, each the same again and again.

    kinds    of calls, one thread for each; those that begin with "async" go by AsyncClient, and
             "many" is evaluate_many of small ones
    pause_s  after each call, so that callers leave processors to others

    After the block `tallies` hold what they saw, in the order of the kinds.
    """

    def __init__(self, target: str, *kinds: str, pause_s: float = 0.0, **options: Any) -> None:
        self._target, self._pause_s, self._options = target, pause_s, options
        self._over = threading.Event()
        self._client = Client(target, **options)
        self.tallies = [Tally() for _ in kinds]
        self._threads = [
            threading.Thread(target=self._starter(kind, tally), daemon=True)
            for kind, tally in zip(kinds, self.tallies, strict=True)
        ]

    def wait_for_more(self) -> None:
        seen = [(tally, tally.calls + 2) for tally in self.tallies]
        wait_until(lambda: all(tally.calls >= least for tally, least in seen))

    @property
    def seen(self) -> dict[str, Any]:
        """Sums over all callers."""
        return {
            "calls": sum(tally.calls for tally in self.tallies),
            "retried": sum(tally.retried for tally in self.tallies),
            "slowest_s": round(max(tally.slowest_s for tally in self.tallies), 3),
            "wrong": sum(tally.wrong for tally in self.tallies),
            "lost": [text for tally in self.tallies for text in tally.lost],
        }

    def check(self) -> None:
        assert (self.seen["wrong"], self.seen["lost"]) == (0, []), self.seen
        assert all(tally.calls for tally in self.tallies)

    def _starter(self, name: str, tally: Tally) -> Callable[[], None]:
        kind = KINDS["unary" if name == "many" else name.removeprefix("async ")]
        array, expected = problem(kind)
        if name.startswith("async "):
            return lambda: asyncio.run(self._await(kind, array, expected, tally))

        options: dict[str, Any] = {"output_shape": kind.received, "on_timing": tally.note}
        evaluate = partial(self._client.evaluate, kind.operator, **options)
        items = [Item(kind.operator, array, kind.received)] * (50 if name == "many" else 1)

        def repeat() -> None:
            while not self._over.is_set():
                many = name == "many"
                results = self._client.evaluate_many(items) if many else map(evaluate, [array])
                for _ in items:
                    with tally.counted():
                        tally.judge(next(results), expected)
                next(results, None)  # after the last one results are closed
                time.sleep(self._pause_s)

        return repeat

    async def _await(self, kind: Kind, array: Array, expected: Array, tally: Tally) -> None:
        async with AsyncClient(self._target, **self._options) as client:
            while not self._over.is_set():
                with tally.counted():
                    result = await client.evaluate(
                        kind.operator, array, output_shape=kind.received, on_timing=tally.note
                    )
                    tally.judge(result, expected)
                await asyncio.sleep(self._pause_s)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Have every caller end after its call, and wait for that."""
        self._over.set()
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._client.close()
        assert not any(thread.is_alive() for thread in self._threads)
