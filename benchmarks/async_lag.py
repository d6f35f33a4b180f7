"""Event-loop lag while AsyncClient streams, and latency of cancellation.

Each of many tasks evaluates one gradient; all start at once. A ticker in the same loop is due every
millisecond; its lag is its delay. A tick that a busy loop leaves out counts with the lag that it
would have had. In a second round all tasks are cancelled shortly after their start; the latency is
the time from cancel() to the end of the task.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import parser, write
from benchmarks.servers import OURS, started
from gradwire import AsyncClient, ops

TICK_S = 0.001
BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
CHANNEL = (512, 512)
CHANNEL_MIB = 1


class Ticker:
    """Measures the lag of the running event loop until it is stopped.

    lags_s       delay of each tick
    max_threads  most threads that ran at once
    """

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self.max_threads = 0
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop measuring."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        due = time.perf_counter() + TICK_S
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            self.max_threads = max(self.max_threads, threading.active_count())
            while due <= now:
                self.lags_s.append(now - due)
                due += TICK_S


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write the figures."""
    arguments = parser("async-lag", __doc__)
    arguments.add_argument("--tasks", type=int, nargs="+", default=[20, 200, 500])
    arguments.add_argument("--mib", type=int, default=1, help="of each gradient")
    arguments.add_argument(
        "--cancel-after-ms", type=float, default=15.0, help="time from the start to cancel()"
    )
    given = arguments.parse_args(argv)
    array = np.ones((1, given.mib // CHANNEL_MIB, *CHANNEL), np.float32)
    with started(*OURS) as server:
        rows = [
            asyncio.run(_measure(server.address, array, tasks, given.cancel_after_ms / 1e3))
            for tasks in given.tasks
        ]
    for row in rows:
        print(
            f"{row['tasks']:4} tasks of {given.mib} MiB in {row['seconds']:.2f} s: loop lag "
            f"p99 {row['lag_p99_ms']:.1f} ms, max {row['lag_max_ms']:.1f} ms, "
            f"{row['max_threads']} threads; {row['cancelled']} cancelled: latency "
            f"p50 {row['cancel_p50_ms']:.1f} ms, p99 {row['cancel_p99_ms']:.1f} ms, "
            f"max {row['cancel_max_ms']:.1f} ms"
        )
    write(given.json, {"mib": given.mib, "rows": rows})
    return 0


async def _measure(
    address: str, array: NDArray[Any], tasks: int, cancel_after_s: float
) -> dict[str, float]:
    async with AsyncClient(address) as client:
        shape = (*array.shape[:2], CHANNEL[0] // 2, CHANNEL[1] // 2)

        def call() -> Awaitable[NDArray[Any]]:
            return client.evaluate(BILINEAR, array, output_shape=shape)

        await client.wait_ready()
        await asyncio.gather(*[call() for _ in range(4)])
        ticker, start = Ticker(), time.perf_counter()
        await asyncio.gather(*[call() for _ in range(tasks)])
        seconds = time.perf_counter() - start
        await ticker.stop()
        latencies_s = await _cancel(call, tasks, cancel_after_s)
        await call()
    return {
        "tasks": tasks,
        "seconds": seconds,
        "lag_p99_ms": 1e3 * float(np.quantile(ticker.lags_s, 0.99)),
        "lag_max_ms": 1e3 * max(ticker.lags_s),
        "max_threads": ticker.max_threads,
        "cancelled": len(latencies_s),
        "cancel_p50_ms": _quantile_ms(latencies_s, 0.5),
        "cancel_p99_ms": _quantile_ms(latencies_s, 0.99),
        "cancel_max_ms": _quantile_ms(latencies_s, 1.0),
    }


async def _cancel(
    call: Callable[[], Awaitable[object]], tasks: int, after_s: float
) -> Sequence[float]:
    """Return the seconds from cancel() to each task's end.

    Only tasks that it ended count.
    """
    running = [asyncio.ensure_future(call()) for _ in range(tasks)]
    ended_at: dict[asyncio.Future[object], float] = {}
    for task in running:
        task.add_done_callback(lambda done: ended_at.update({done: time.perf_counter()}))
    await asyncio.sleep(after_s)
    cancelled_at = {task: time.perf_counter() for task in running if task.cancel()}
    await asyncio.gather(*running, return_exceptions=True)
    return [ended_at[task] - at for task, at in cancelled_at.items() if task.cancelled()]


def _quantile_ms(seconds: Sequence[float], share: float) -> float:
    return 1e3 * float(np.quantile(seconds, share)) if seconds else float("nan")


if __name__ == "__main__":
    sys.exit(main())
