"""A replica is a server's process and whoever owns it: each ends with the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, ops
from gradwire_ray.load import Load
from gradwire_ray.replica import Replica
from processes import QUICK
from raw_calls import wait_until

OP = ops.InterpolateBackward(mode="nearest", data_format="NCX")
_SEVERAL_TELLINGS_S = 2.0
ONES = np.ones((1, 1, 4, 4), np.float32)


@contextmanager
def running(
    *flags: str, ended: threading.Event | None = None
) -> Generator[tuple[Replica, threading.Event]]:
    ended = ended or threading.Event()
    replica = Replica((*QUICK, *flags), host="127.0.0.1", threads=3, on_end=ended.set)
    try:
        yield replica, ended
    finally:
        replica.stop(0.0)


def is_there(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_serves_where_it_says_and_tells_its_load() -> None:
    with running() as (replica, ended):
        report = replica.report()
        assert report.address.startswith("127.0.0.1:")
        with Client(report.address) as client:
            client.wait_ready()
            result = client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
            assert client.server_info().backend == "numpy_cpu"
        np.testing.assert_array_equal(result, np.full((1, 1, 2, 2), 4, np.float32))
        wait_until(lambda: replica.report().load != Load())
        assert 0 < replica.report().load.loop <= 1
        assert Path(f"/proc/{report.pid}").exists()
        environment = Path(f"/proc/{report.pid}/environ").read_bytes().split(b"\0")
        assert b"GRADWIRE_COMPUTE_THREADS=3" in environment
        assert not ended.is_set()
    assert not is_there(report.pid)
    assert not ended.is_set()


def test_it_tells_when_its_server_has_ended() -> None:
    with running() as (replica, ended):
        os.kill(replica.report().pid, signal.SIGKILL)
        assert ended.wait(60)


def test_it_finishes_calls_before_it_ends() -> None:
    with running("--grace-s", "30") as (replica, _), Client(replica.report().address) as client:
        results = client.evaluate_many((OP, ONES, (1, 1, 2, 2)) for _ in range(2000))
        first = next(results)
        stopping = threading.Thread(target=replica.stop, args=(30.0,))
        stopping.start()
        assert all((one == first).all() for one in results)
        stopping.join()


def test_told_to_stop_again_it_still_finishes_calls() -> None:
    with running("--grace-s", "30") as (replica, _), Client(replica.report().address) as client:
        results = client.evaluate_many((OP, ONES, (1, 1, 2, 2)) for _ in range(2000))
        first = next(results)
        assert not replica.report().stopping
        stopping = [threading.Thread(target=replica.stop, args=(30.0,)) for _ in range(2)]
        for one in stopping:
            one.start()
        wait_until(lambda: replica.report().stopping)
        assert all((one == first).all() for one in results)
        for one in stopping:
            one.join()
        assert replica.report().stopping


def test_a_server_that_hangs_is_silent_though_its_owner_reports() -> None:
    with running() as (replica, _):
        wait_until(lambda: replica.report().load != Load())
        pid = replica.report().pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: replica.report().silent_s > _SEVERAL_TELLINGS_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: replica.report().silent_s < _SEVERAL_TELLINGS_S)


def test_its_server_ends_with_it() -> None:
    words = (
        "import os, signal\n"
        "from gradwire_ray.replica import Replica\n"
        f"one = Replica({QUICK!r}, host='127.0.0.1', threads=1, on_end=print)\n"
        "print(one.report().pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", words], stdout=subprocess.PIPE, text=True, check=False
    )
    assert owner.returncode == -signal.SIGKILL
    pid = int(owner.stdout)
    wait_until(lambda: not is_there(pid))


def test_a_server_that_does_not_start_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match=r"the server ended with status 1: --tokens is /nowhere"):
        Replica(("--tokens", "/nowhere"), host="127.0.0.1", threads=1, on_end=print)
    assert "/nowhere" in capfd.readouterr().err
