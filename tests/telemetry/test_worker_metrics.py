"""One endpoint tells the metrics of all workers; none is lost with a worker, and no count falls."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, ops
from support.processes import running_command
from support.raw_calls import RawClient, published_request, wait_until
from support.scraping import Scrape, scrape

FLAGS = ("--workers", "2", "--backend", "numpy_cpu", "--http-port", "127.0.0.1:0")
KILLS = 4
OPERATOR = ops.InterpolateBackward(mode="nearest", data_format="NCX")
GRADIENT = np.ones((1, 1, 4, 4), np.float32)
WORKERS = {"0", "1"}


def counts(seen: Scrape) -> dict[object, float]:
    """Return all that may never fall."""
    return {
        key: value
        for key, value in seen.samples.items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
    }


def test_workers_are_merged_and_told_apart(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        address = command.http_address
        calls = 0

        def by_worker() -> list[float]:
            nonlocal calls
            with RawClient(command.address) as client:
                client.evaluate(published_request())
            calls += 1
            seen = scrape(address)
            assert seen.value("gradwire_requests_total", method="Evaluate", status="OK") == calls
            each = [seen.value("gradwire_worker_requests_total", worker=name) for name in WORKERS]
            assert sum(each) == calls
            return each

        wait_until(lambda: all(by_worker()))
        seen = scrape(address)
        assert seen.value("gradwire_worker_ready") == 2
        assert seen.value("gradwire_build_info") == 1
        assert seen.value("gradwire_worker_restarts_total") == 0
        for name in ("gradwire_streams", "gradwire_queue_depth", "gradwire_worker_ready"):
            assert seen.labels(name, "worker") == WORKERS
        for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
            assert seen.labels(name, "worker") == {*WORKERS, "supervisor"}
            assert seen.value(name, worker="0") > 0


@pytest.mark.slow
def test_no_count_falls_and_none_is_lost_while_workers_are_killed(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        address = command.http_address
        over = threading.Event()
        fallen: list[object] = []
        done = [0]

        def watch() -> None:
            before: dict[object, float] = {}
            while not over.wait(0.02):
                now = counts(scrape(address))
                fallen.extend(key for key, value in before.items() if now.get(key, 0) < value)
                before = now

        def evaluate() -> None:
            with Client(command.address) as client:
                while not over.is_set():
                    client.evaluate(OPERATOR, GRADIENT, output_shape=(1, 1, 2, 2))
                    done[0] += 1

        def has_done(calls: int) -> bool:
            return done[0] >= calls

        threads = [threading.Thread(target=each) for each in (watch, evaluate)]
        for thread in threads:
            thread.start()
        for kill in range(KILLS):
            wait_until(partial(has_done, done[0] + 20))
            worker = str(kill % 2)
            command.kill_worker(kill % 2)
            command.wait_for_log(f"worker serves worker={worker} ", times=2 + kill // 2)
        over.set()
        for thread in threads:
            thread.join()
        wait_until(lambda: scrape(address).value("gradwire_worker_ready") == 2)
        seen_last = scrape(address)
    assert not fallen
    assert seen_last.value("gradwire_worker_restarts_total", worker="0") == KILLS // 2
    # A try whose answer was lost with its worker was counted too, once for each kill at most.
    counted = seen_last.value("gradwire_requests_total", status="OK")
    assert done[0] <= counted <= done[0] + KILLS
    assert seen_last.value("gradwire_requests_in_flight") == 0


def test_a_worker_that_is_away_is_not_ready(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        address = command.http_address
        wait_until(lambda: scrape(address).value("gradwire_worker_ready") == 2)
        pid = command.workers[1]
        os.kill(pid, signal.SIGSTOP)
        # Its metrics are read where they are; it need not answer.
        assert scrape(address).value("gradwire_streams_limit", worker="1") == 32
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not scrape(address).value("gradwire_worker_ready", worker="1"))
        wait_until(lambda: scrape(address).value("gradwire_worker_ready", worker="1"))
