"""When replicas are added and removed, which are listed, and which deployments are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gradwire_ray.controller import Member
from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import Report
from gradwire_ray.scaling import Scaling

CLEAR = ("--insecure",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "A"}, "name is 'A'"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": ""}, "name is ''"),
        ({"least": 0}, "min is 0"),
        ({"least": 3, "most": 2}, "max 2"),
        ({"target_queue": 0.0}, "target_queue is 0"),
        ({"target_queue": float("nan")}, "target_queue is nan"),
        ({"down_after_s": 0.5}, "down_after_s is 0.5"),
        ({"num_gpus": -1.0}, "num_gpus -1"),
        ({"num_gpus": 1.5}, "num_gpus is 1.5"),
        ({"port": 65536}, "port is 65536"),
        ({"flags": ()}, "give --tls-certificate and --tls-key, or --insecure"),
        ({"flags": ("--nonsense",)}, "No such option '--nonsense'"),
        ({"flags": ("--insecure", "token")}, "unexpected extra argument"),
        ({"flags": ("--workers=2", *CLEAR)}, "--workers=2 is not for replicas"),
        ({"flags": ("--address", "0.0.0.0:1", *CLEAR)}, "--address is not for replicas"),
        ({"flags": ("--max-rank", "9", *CLEAR)}, "--max-rank is 9"),
    ],
    ids=str,
)
def test_a_deployment_that_cannot_run_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(Deployment(flags=CLEAR), **values)


def test_threads_are_whole_cpus_and_calls_have_the_servers_delays_to_finish() -> None:
    threads = [Deployment(num_cpus=cpus, flags=CLEAR).threads for cpus in (0.0, 0.5, 1.9, 4.0)]
    assert threads == [1, 1, 1, 4]
    flags = (*CLEAR, "--drain-delay-s", "2", "--grace-s", "7")
    assert Deployment(flags=flags).drain_s == 9


def test_neither_the_client_nor_the_server_imports_ray() -> None:
    words = "import json, sys, gradwire, gradwire_server.processes.serve, gradwire_server.command"
    told = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", f"{words}; print(json.dumps(list(sys.modules)))"],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert not {"ray", "gradwire_ray"} & set(json.loads(told))


WELL = Report(address="127.0.0.1:1")


def heard(report: Report | None, *, ago_s: float = 0.4) -> Member:
    member = Member()
    if report is not None:
        member.take(report)
        member.heard_at -= ago_s
    return member


@pytest.mark.parametrize(
    ("report", "ago_s", "state"),
    [
        (None, 0.0, "starting"),
        (WELL, 0.4, "serving"),
        (WELL, 4.0, "serving"),
        (WELL, 6.0, "silent"),
        (Report(address="127.0.0.1:1", stopping=True), 0.4, "leaving"),
        (Report(failure="no such file"), 0.4, "starting"),
    ],
    ids=("new", "well", "busy", "hanging", "stopping", "failing"),
)
def test_the_state_of_a_replica_is_that_of_its_last_report(
    report: Report | None, ago_s: float, state: str
) -> None:
    member = heard(report, ago_s=ago_s)
    assert member.state == state
    member.stopping = threading.Thread()
    assert member.state == "leaving"


def test_a_replica_that_was_silent_comes_back_with_its_next_report() -> None:
    member = heard(WELL, ago_s=9.0)
    states = [member.state]
    member.take(WELL)
    assert [*states, member.state] == ["silent", "serving"]


IDLE, FULL = Report(), Report(waiting=1.5, busy=1.0)
HUGE, LOOPING = Report(waiting=50.0, busy=1.0), Report(loop=0.99)
Look = tuple[Sequence[Report] | Report, int, int]


def refusals(*counts: int) -> list[Report]:
    return [Report(refused=count) for count in counts]


# Least and most replicas; then reports, how often they are looked at, and how many are wanted then.
# A single report is that of all replicas there are to be.
SCALINGS: dict[str, tuple[int, int, list[Look]]] = {
    "a burst places none": (1, 8, [(one, 1, 1) for one in (FULL, IDLE, FULL, IDLE)]),
    "a queue that stands, at most doubled": (4, 100, [(FULL, 2, 6), (HUGE, 2, 12)]),
    "none before the last ones serve": (1, 8, [(FULL, 2, 2), ([FULL], 20, 2), ([FULL] * 2, 2, 3)]),
    "refusals count twice": (
        *(2, 8),
        [(one, 1, wanted) for one, wanted in zip(refusals(1, 3, 3), (2, 4, 4), strict=True)],
    ),
    "refusals of a moment": (1, 8, [(one, 1, 1) for one in refusals(3, 3, 5, 5)]),
    "a refusal starts the wait anew": (
        *(1, 8),
        [(FULL, 2, 2), *((one, 9, 2) for one in refusals(1, 2, 3, 4, 5))],
    ),
    "a full event loop": (2, 8, [(LOOPING, 2, 3)]),
    "a busy event loop": (2, 8, [(Report(loop=0.85), 9, 2)]),
    "busy threads alone": (1, 8, [(Report(busy=1.0), 30, 1)]),
    "most, queue": (1, 3, [(FULL, 20, 3)]),
    "most, long queue": (1, 3, [(Report(waiting=9.0), 20, 3)]),
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
def test_replicas_are_added_and_removed_one_look_a_second(name: str) -> None:
    least, most, looks = SCALINGS[name]
    deployment = Deployment(least=least, most=most, down_after_s=10.0, flags=CLEAR)
    now = 0.0
    scaling = Scaling(deployment, clock=lambda: now)
    for reports, times, wanted in looks:
        for _ in range(times):
            now += 1.0
            scaling.look([reports] * scaling.wanted if isinstance(reports, Report) else reports)
        assert scaling.wanted == wanted, (reports, now)
