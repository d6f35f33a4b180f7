"""One driver for both clients, and the calls, arrays and policies that their tests share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, ClassVar, Self, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, Item, RetryPolicy, ops

Face = type[Client]
Array = NDArray[Any]

# A client before and after forks, for run_script().
FORKING = """
import os, sys
import numpy as np
from gradwire import Client, RetryPolicy, ops

copy = ops.DmlResample(interpolation_mode="linear")
small = np.ones((4, 4), np.float32)
# A dead connection stays dead however often it is tried; grpc 1.76 breaks a new one now and then.
policy = RetryPolicy(max_attempts=5, initial_backoff_s=0.05)
client = Client(sys.argv[1], retry=policy)
large = client.empty((512, 512))
large[...] = np.arange(1 << 18).reshape(512, 512)

def works():
    return all(
        np.array_equal(client.evaluate(copy, each, output_shape=each.shape), each)
        for each in (small, large)
    )

def in_a_child(holds):
    child = os.fork()
    if child == 0:
        os._exit(0 if holds() else 1)
    assert os.waitpid(child, 0)[1] == 0

def refuses():
    try:
        client.server_info()
    except RuntimeError:
        return True

assert works()
for ends in (works, lambda: works() and client.close() is None) * 2:
    in_a_child(ends)
    assert works()
client.close()
in_a_child(refuses)
print("done")
"""

COPY = ops.DmlResample(interpolation_mode="linear")
BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
SMALL = np.ones((4, 4), np.float32)
# Above the threshold of streams.
LARGE = np.ones((1024, 1024), np.float32)
ITEM = Item(COPY, np.ones((2, 2), np.float32), (2, 2))

# Ways in which the elements of a float32 tensor of four axes may lie.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "packed": np.ascontiguousarray,
    "big-endian": lambda array: array.astype(">f4"),
    "column-major": np.asfortranarray,
    "gaps": lambda array: np.repeat(array, 2, axis=3)[..., ::2],
    "backward": lambda array: array[::-1, ..., ::-1].copy()[::-1, ..., ::-1],
    "channels last": lambda array: array.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
}

PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=40)
BRISK = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.01, max_attempts=3)
# Tries are over soon if they are not counted anew after every progress.
SOON_OVER = RetryPolicy(initial_backoff_s=0.15, max_backoff_s=0.15, max_attempts=3)
ONCE = RetryPolicy(max_attempts=1)


class Counting(RetryPolicy):
    """Notes how many tries have failed."""

    failed: ClassVar[list[int]] = []

    def backoff_s(self, failures: int, *, draw: float) -> float:
        self.failed.append(failures)
        return super().backoff_s(failures, draw=draw)


def copied(client: Any, array: Array, **options: Any) -> Any:
    """Evaluate the operator that returns its input."""
    return client.evaluate(COPY, array, output_shape=array.shape, **options)


def halved(client: Any, array: Array, **options: Any) -> Any:
    """Evaluate a gradient whose two last axes are half as long as the input's."""
    return client.evaluate(BILINEAR, array, output_shape=half(array), **options)


def half(array: Array) -> tuple[int, ...]:
    return (*array.shape[:-2], array.shape[-2] // 2, array.shape[-1] // 2)


# Every RPC, by what a user calls for it.
CALLS: dict[str, Callable[[Any], Any]] = {
    "Evaluate": lambda client: copied(client, SMALL),
    "EvaluateStream": lambda client: copied(client, LARGE),
    "EvaluateMany": lambda client: list(client.evaluate_many([ITEM] * 3)),
    "ListOperators": lambda client: client.operators(),
    "GetServerInfo": lambda client: client.server_info(),
}


@cache
def driver_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="driver", daemon=True).start()
    return loop


def driven(awaitable: Awaitable[Any]) -> Any:
    async def run() -> Any:
        return await awaitable

    try:
        return asyncio.run_coroutine_threadsafe(run(), driver_loop()).result()
    except concurrent.futures.CancelledError as error:
        raise asyncio.CancelledError from error


class Driver:
    """An AsyncClient with the blocking methods of Client."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.client = AsyncClient(*arguments, **options)
        # Here and not at the first call: calls at once would start two.
        driver_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *arguments, **options: driven(method(*arguments, **options))

    def evaluate_many(self, *arguments: Any, **options: Any) -> DrivenResults:
        async def start() -> Any:
            return self.client.evaluate_many(*arguments, **options)

        return DrivenResults(driven(start()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driven(self.client.close())


class DrivenResults:
    """Asynchronous results as an iterator; `on_outcome` is called in the event loop."""

    def __init__(self, results: Any) -> None:
        self._results = results
        self.on_outcome: Callable[[int], object] = id

    @property
    def index(self) -> int:
        return int(self._results.index)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return driven(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> Any:
        before = self.index
        try:
            return await anext(self._results)
        finally:
            if self.index != before:
                self.on_outcome(self.index)

    def __enter__(self) -> Self:
        driven(self._results.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        driven(self._results.__aexit__(*error))


AWAITED = cast("Face", Driver)
FACES: dict[str, Face] = {"blocking": Client, "awaited": AWAITED}


def run_script(script: str, address: str) -> None:
    """Run a script apart from pytest, whose threads are not at rest when a test wants to fork."""
    command = [sys.executable, "-c", script, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


@contextmanager
def interrupted(*, after_s: float) -> Generator[None]:
    """Have Ctrl-C meet the block, this once."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


either_size = pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
