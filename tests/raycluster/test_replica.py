"""A replica is a server's process and its owner: each ends with the other."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, ops
from gradwire_ray import replica as replica_module
from gradwire_ray.replica import Replica
from support.processes import QUICK, is_running
from support.raw_calls import wait_until

OP = ops.InterpolateBackward(mode="nearest", data_format="NCX")
_SEVERAL_REPORTS_S = 2.0
ONES = np.ones((1, 1, 4, 4), np.float32)


class Running:
    """A replica, its reports so far, and an event of its server's end without being told to."""

    def __init__(self, *flags):
        self.reports = []
        self.ended = threading.Event()
        options = {"send": self.reports.append, "on_end": self.ended.set}
        self.stop = Replica((*QUICK, *flags), host="127.0.0.1", threads=3, **options).stop

    def report(self):
        before = len(self.reports)
        wait_until(lambda: len(self.reports) > before)
        return self.reports[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(0.0)


def test_it_serves_tells_its_load_and_is_silent_while_its_server_hangs():
    with Running() as replica:
        report = replica.report()
        assert report.address.startswith("127.0.0.1:")
        with Client(report.address) as client:
            client.wait_ready()
            result = client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
            assert client.server_info().backend == "numpy_cpu"
        np.testing.assert_array_equal(result, np.full((1, 1, 2, 2), 4, np.float32))
        wait_until(lambda: 0 < replica.report().loop <= 1)
        environment = Path(f"/proc/{report.pid}/environ").read_bytes().split(b"\0")
        assert b"GRADWIRE_COMPUTE_THREADS=3" in environment
        os.kill(report.pid, signal.SIGSTOP)
        try:
            # Lines that it wrote before its end can still be read.
            time.sleep(_SEVERAL_REPORTS_S / 2)
            before = len(replica.reports)
            time.sleep(_SEVERAL_REPORTS_S)
            assert len(replica.reports) == before
        finally:
            os.kill(report.pid, signal.SIGCONT)
        replica.report()
        assert not replica.ended.is_set()
    assert not is_running(report.pid)
    assert not replica.ended.is_set()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_it_tells_when_its_server_has_ended_or_hung_for_long(number, monkeypatch):
    monkeypatch.setattr(replica_module, "_SILENCE_S", _SEVERAL_REPORTS_S)
    with Running() as replica:
        os.kill(replica.report().pid, number)
        assert replica.ended.wait(60)


def test_told_to_stop_again_and_again_it_says_so_and_finishes_calls():
    flags = ("--grace-s", "30", "--drain-delay-s", "2")
    with Running(*flags) as replica, Client(replica.report().address) as client:
        results = client.evaluate_many((OP, ONES, (1, 1, 2, 2)) for _ in range(2000))
        first = next(results)
        assert not replica.report().stopping
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(replica.stop, 32.0)
            wait_until(lambda: replica.report().stopping)
            left = list(results)
        assert len(left) == 1999
        np.testing.assert_array_equal(left, [first] * 1999)
        assert not replica.ended.is_set()


def test_its_server_ends_with_it():
    words = f"""
import os, signal, time
from gradwire_ray.replica import Replica
def end(report):
    print(report.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
Replica({QUICK!r}, host='127.0.0.1', threads=1, send=end, on_end=print)
time.sleep(60)
"""
    owner = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", words], stdout=subprocess.PIPE, text=True, check=False
    )
    assert owner.returncode == -signal.SIGKILL
    pid = int(owner.stdout)
    wait_until(lambda: not is_running(pid))


def test_a_server_that_does_not_start_says_why_and_is_tried_again_later(capfd, monkeypatch):
    monkeypatch.setattr(replica_module, "_PAUSE_S", _SEVERAL_REPORTS_S)
    with Running("--tokens", "/nowhere") as replica:
        report = replica.report()
        assert "the server ended with status 1: --tokens is /nowhere" in report.failure
        assert report.address == ""
        assert not replica.ended.is_set()
        assert replica.ended.wait(60)
    assert "/nowhere" in capfd.readouterr().err
    monkeypatch.undo()
    # It can be stopped before that.
    with Running("--tokens", "/nowhere") as replica:
        replica.report()
    assert not replica.ended.is_set()
