"""Samples of calls and the closed loop in threads that takes them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.peers.processes import busy_s, cpu_s, tree

Call = Callable[[], object]
_WARM_UP_CALLS = 3


@dataclass(frozen=True, slots=True)
class CallSample:
    """Figures of calls for a while.

    rate             calls per second
    p50_ms, p99_ms   of their latencies
    server_ms        processor time of the server's processes for each call
    client_ms        the same of the client
    others           cores that other processes kept busy meanwhile
    """

    rate: float
    p50_ms: float
    p99_ms: float
    server_ms: float
    client_ms: float
    others: float


class CallMeter:
    """Measures from its construction until `sample` is called."""

    def __init__(self, server: int, client_cpu_s: Callable[[], float]) -> None:
        self._pids = tree(server)
        self._client_cpu_s = client_cpu_s
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        return time.perf_counter(), cpu_s(self._pids), self._client_cpu_s(), busy_s()

    def sample(
        self, latencies_s: Sequence[float], *, calls: int | None = None, rate: float | None = None
    ) -> CallSample:
        """Return the sample.

        calls and rate are given if latencies are those of a part of the calls.
        """
        seconds, server_s, client_s, machine_s = (
            after - before for before, after in zip(self._before, self._now(), strict=True)
        )
        calls = calls or len(latencies_s)
        ordered = sorted(latencies_s)
        return CallSample(
            rate=rate or calls / seconds,
            p50_ms=1e3 * ordered[len(ordered) // 2],
            p99_ms=1e3 * ordered[len(ordered) * 99 // 100],
            server_ms=1e3 * server_s / calls,
            client_ms=1e3 * client_s / calls,
            others=(machine_s - server_s - client_s) / seconds,
        )


def closed_loop(
    make: Callable[[], Call], *, server: int, in_flight: int, seconds: float
) -> CallSample:
    """Call repeatedly from so many threads.

    Each thread makes a call of its own.
    """
    calls = [make() for _ in range(in_flight)]
    for call in calls * _WARM_UP_CALLS:
        call()
    latencies: list[float] = []
    failures: list[BaseException] = []
    meter = CallMeter(server, time.process_time)
    until = time.perf_counter() + seconds

    def work(call: Call) -> None:
        try:
            while (started := time.perf_counter()) < until:
                call()
                latencies.append(time.perf_counter() - started)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return meter.sample(latencies)


def write(sample: CallSample) -> None:
    """Write a sample on stdout for the process that started this one."""
    json.dump(asdict(sample), sys.stdout)
