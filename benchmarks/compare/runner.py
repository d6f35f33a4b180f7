"""Load program of either side: its SDK and its LocalClient.

Reads an order in JSON from each line of standard input, and answers with a line of JSON, its
figures. It uses public names only, so that it runs with this tree and with the baseline.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, Item, ops
from gradwire_server import LocalClient

Array = NDArray[Any]
Figures = dict[str, float]

_SMALL, _SMALL_RESULT = (1, 3, 32, 32), (1, 3, 16, 16)
_LARGE, _LARGE_RESULT = (8, 64, 112, 112), (8, 64, 56, 56)
_BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_NXC = (0, 2, 3, 1)
_LOCAL: dict[str, tuple[ops.Operator, bool]] = {
    "bilinear": (_BILINEAR, False),
    "bilinear, channels-last": (
        ops.InterpolateBackward(mode="bilinear", data_format="NXC"),
        True,
    ),
    "nearest": (ops.InterpolateBackward(mode="nearest", data_format="NCX"), False),
    "bicubic": (ops.TorchUpsampleBackward(mode="bicubic"), False),
}
_DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@cache
def _client(address: str) -> Client:
    return Client(address)


@cache
def _local() -> LocalClient:
    return LocalClient("auto", 1)


@cache
def _numbers(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return numbers.astype(_DTYPES[dtype])


def _times(call: Callable[[], object], seconds: float) -> list[float]:
    """Call repeatedly for a while; return the times.

    A first call is not counted.
    """
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        call()
        times.append(time.perf_counter() - began)
    return times


def small(address: str, seconds: float) -> Figures:
    """Evaluate small tensors, one at a time."""
    client, source = _client(address), _numbers(_SMALL)
    times = _times(lambda: client.evaluate(_BILINEAR, source, output_shape=_SMALL_RESULT), seconds)
    return {"rate": len(times) / sum(times), "p50_ms": 1e3 * statistics.median(times)}


def large(address: str, seconds: float) -> Figures:
    """Evaluate large tensors, one at a time."""
    client, source = _client(address), _numbers(_LARGE)
    out = np.empty(_LARGE_RESULT, np.float32)
    client.evaluate(_BILINEAR, source, output_shape=_LARGE_RESULT, out=out)
    before = time.process_time()
    times = _times(
        lambda: client.evaluate(_BILINEAR, source, output_shape=_LARGE_RESULT, out=out), seconds
    )
    calls = len(times) + 1
    return {
        "rate": len(times) / sum(times),
        "client_ms": 1e3 * (time.process_time() - before) / calls,
        "calls": calls,
    }


def many(address: str, seconds: float) -> Figures:
    """Evaluate small tensors over one stream."""
    item = Item(_BILINEAR, _numbers(_SMALL), _SMALL_RESULT)
    until = time.perf_counter() + seconds

    def items() -> Iterator[Item]:
        while time.perf_counter() < until:
            yield item

    began, before = time.perf_counter(), time.process_time()
    count = sum(1 for _ in _client(address).evaluate_many(items()))
    client_s = time.process_time() - before
    return {
        "rate": count / (time.perf_counter() - began),
        "client_us": 1e6 * client_s / count,
        "calls": count,
    }


def concurrent(address: str, seconds: float) -> Figures:
    """Evaluate small tensors in 200 tasks of an AsyncClient."""
    return asyncio.run(_concurrent(address, seconds))


async def _concurrent(address: str, seconds: float) -> Figures:
    source = _numbers(_SMALL)
    times: list[float] = []
    async with AsyncClient(address) as client:

        async def caller(until: float) -> None:
            while (began := time.perf_counter()) < until:
                await client.evaluate(_BILINEAR, source, output_shape=_SMALL_RESULT)
                times.append(time.perf_counter() - began)

        async def flood(duration: float) -> float:
            began = time.perf_counter()
            await asyncio.gather(*(caller(began + duration) for _ in range(200)))
            return time.perf_counter() - began

        await flood(0.3)
        times.clear()
        took = await flood(seconds)
    return {"rate": len(times) / took, "p50_ms": 1e3 * statistics.median(times)}


def memory(address: str, pid: int, side: int) -> Figures:
    """Stream a tensor between files; sample anonymous memory.

    The tensor has side x side numbers.
    """
    half = (1, 1, side // 2, side // 2)
    with tempfile.TemporaryDirectory() as folder:
        source = np.memmap(Path(folder) / "source", np.float32, "w+", shape=(1, 1, side, side))
        for row in range(0, side, 256):
            source[0, 0, row : row + 256] = _numbers((1, side))
        result = np.memmap(Path(folder) / "result", np.float32, "w+", shape=half)
        highest = {"server": 0, "client": 0}
        over = threading.Event()

        def sample() -> None:
            while not over.wait(0.02):
                for name, one in (("server", pid), ("client", os.getpid())):
                    highest[name] = max(highest[name], _rss_anon(one))

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            _client(address).evaluate(_BILINEAR, source, output_shape=half, out=result)
        finally:
            over.set()
            sampling.join()
    return {f"{name}_mib": value / (1 << 20) for name, value in highest.items()}


def _rss_anon(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    lines = status.splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def local(kind: str, dtype: str, seconds: float) -> Figures:
    """Compute a large gradient in process."""
    operator, channels_last = _LOCAL[kind]
    source = _numbers(_LARGE, dtype)
    shape: tuple[int, ...] = _LARGE_RESULT
    if channels_last:
        source = np.ascontiguousarray(source.transpose(_NXC))
        shape = tuple(shape[axis] for axis in _NXC)
    out = np.empty(shape, source.dtype)
    call = _local().evaluate
    times = _times(lambda: call(operator, source, output_shape=shape, out=out), seconds)
    return {"ms": 1e3 * statistics.median(times)}


def tiny(seconds: float) -> Figures:
    """Compute a tiny gradient in process.

    Its time is the fixed cost of a call.
    """
    source, out = _numbers(_SMALL), np.empty(_SMALL_RESULT, np.float32)
    call = _local().evaluate
    times = _times(lambda: call(_BILINEAR, source, output_shape=out.shape, out=out), seconds)
    return {"us": 1e6 * statistics.median(times)}


_ORDERS: dict[str, Callable[..., Figures]] = {
    one.__name__: one for one in (small, large, many, concurrent, memory, local, tiny)
}


def _run() -> None:
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        print(json.dumps(_ORDERS[order.pop("do")](**order)), flush=True)


if __name__ == "__main__":
    _run()
