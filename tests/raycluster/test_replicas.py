"""Which deployments are refused, when replicas are added and removed, and how one serves."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, ops
from gradwire_ray import replica as replica_module
from gradwire_ray.controller import Member
from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import Replica, Report
from gradwire_ray.scaling import Scaling
from support.processes import QUICK, is_running
from support.raw_calls import wait_until

CLEAR = ("--insecure",)
OP = ops.InterpolateBackward(mode="nearest", data_format="NCX")
_SEVERAL_REPORTS_S = 2.0
ONES = np.ones((1, 1, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"least": 0}, "min is 0"),
        ({"least": 3, "most": 2}, "max 2"),
        ({"target_queue": float("nan")}, "target_queue is nan"),
        ({"num_gpus": 1.5}, "num_gpus is 1.5"),
        ({"flags": ()}, "give --tls-certificate and --tls-key, or --insecure"),
        ({"flags": ("--nonsense",)}, "No such option '--nonsense'"),
        ({"flags": ("--workers=2", *CLEAR)}, "--workers=2 is not for replicas"),
        ({"flags": ("--address", "0.0.0.0:1", *CLEAR)}, "--address is not for replicas"),
        ({"flags": ("--max-rank", "9", *CLEAR)}, "--max-rank is 9"),
    ],
    ids=str,
)
def test_a_deployment_that_cannot_run_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        replace(Deployment(flags=CLEAR), **values)


def test_the_state_of_a_replica_is_that_of_its_last_report():
    serving, leaving = Report(address="127.0.0.1:1"), Report(address="127.0.0.1:1", stopping=True)
    assert Member().state == "starting"
    assert Member(stopping=threading.Thread()).state == "leaving"
    member = Member()
    for report, ago_s, state in (
        (Report(failure="no such file"), 0.4, "starting"),
        (serving, 4.0, "serving"),
        (serving, 6.0, "silent"),
        (serving, 0.0, "serving"),
        (leaving, 0.4, "leaving"),
        (serving, 0.4, "serving"),
    ):
        member.take(report)
        member.heard_at -= ago_s
        assert member.state == state


IDLE, FULL = Report(), Report(waiting=1.5, busy=1.0)
HUGE, LOOPING = Report(waiting=50.0, busy=1.0), Report(loop=0.99)


def refusals(*looks):
    return [(Report(refused=count), times, wanted) for count, times, wanted in looks]


# Least and most replicas; then reports, how often they are looked at, and how many are wanted then.
# A single report is that of all replicas there are to be.
SCALINGS = {
    "a burst places none": (1, 8, [(one, 1, 1) for one in (FULL, IDLE, FULL, IDLE)]),
    "a queue that stands, at most doubled": (4, 100, [(FULL, 2, 6), (HUGE, 2, 12)]),
    "none before the last ones serve": (1, 8, [(FULL, 2, 2), ([FULL], 20, 2), ([FULL] * 2, 2, 3)]),
    "refusals count twice": (2, 8, refusals((1, 1, 2), (3, 1, 4), (3, 1, 4))),
    "refusals of a moment": (1, 8, refusals((3, 2, 1), (5, 2, 1))),
    "a refusal starts the wait anew": (
        *(1, 8),
        [(FULL, 2, 2), *refusals(*((count, 9, 2) for count in range(1, 6)))],
    ),
    "a full event loop": (2, 8, [(LOOPING, 2, 3)]),
    "a busy event loop": (2, 8, [(Report(loop=0.85), 9, 2)]),
    "busy threads alone": (1, 8, [(Report(busy=1.0), 30, 1)]),
    "most, queue": (1, 3, [(Report(waiting=9.0), 20, 3)]),
    "most, loop": (1, 3, [(Report(loop=1.0), 20, 3)]),
    "one goes after long": (
        *(1, 8),
        [(FULL, 2, 2), (FULL, 2, 3), (IDLE, 10, 3), (IDLE, 1, 2), (IDLE, 10, 2), (IDLE, 100, 1)],
    ),
    "others too busy": (1, 8, [(FULL, 2, 2), (Report(busy=0.5), 100, 2)]),
    "others too full": (1, 8, [(FULL, 2, 2), (Report(waiting=0.4), 100, 2)]),
    "others' loops": (1, 8, [(FULL, 2, 2), (Report(loop=0.5), 100, 2)]),
    "a busy moment starts the wait anew": (
        *(1, 8),
        [(FULL, 2, 2), *[(IDLE, 9, 2), (Report(busy=0.9), 1, 2)] * 5],
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_replicas_are_added_and_removed_one_look_a_second(name):
    least, most, looks = SCALINGS[name]
    deployment = Deployment(least=least, most=most, down_after_s=10.0, flags=CLEAR)
    now = 0.0
    scaling = Scaling(deployment, clock=lambda: now)
    for reports, times, wanted in looks:
        for _ in range(times):
            now += 1.0
            scaling.look([reports] * scaling.wanted if isinstance(reports, Report) else reports)
        assert scaling.wanted == wanted, (reports, now)


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


def test_a_replica_serves_tells_its_load_and_is_silent_while_its_server_hangs():
    with Running() as replica:
        report = replica.report()
        assert report.address.startswith("127.0.0.1:")
        with Client(report.address) as client:
            client.wait_ready()
            result = client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
            assert client.server_info().backend == "numpy_cpu"
        np.testing.assert_array_equal(result, np.full((1, 1, 2, 2), 4, np.float32))
        wait_until(lambda: any(0 < each.loop <= 1 for each in list(replica.reports)))
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
def test_a_replica_tells_when_its_server_has_ended_or_hung_for_long(number, monkeypatch):
    monkeypatch.setattr(replica_module, "_SILENCE_S", _SEVERAL_REPORTS_S)
    with Running() as replica:
        with suppress(ProcessLookupError):  # a busy one may have been silent already
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
            wait_until(lambda: any(each.stopping for each in list(replica.reports)))
            left = list(results)
        assert len(left) == 1999
        np.testing.assert_array_equal(left, [first] * 1999)
        assert not replica.ended.is_set()


def test_a_server_ends_with_its_replica():
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


def test_threads_are_whole_cpus_and_calls_have_the_servers_delays_to_finish():
    threads = [Deployment(num_cpus=cpus, flags=CLEAR).threads for cpus in (0.0, 0.5, 1.9, 4.0)]
    assert threads == [1, 1, 1, 4]
    flags = (*CLEAR, "--drain-delay-s", "2", "--grace-s", "7")
    assert Deployment(flags=flags).drain_s == 9
