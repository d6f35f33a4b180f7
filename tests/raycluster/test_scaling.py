"""When replicas are added and removed, which are listed, and which deployments are refused."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gradwire_ray.controller import Member
from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import Report
from gradwire_ray.scaling import Scaling

CLEAR = ("--insecure",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": ""}, "name is ''"),
        ({"least": 0}, "min is 0"),
        ({"least": 3, "most": 2}, "max 2"),
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
def test_a_deployment_that_cannot_run_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        replace(Deployment(flags=CLEAR), **values)


def test_threads_are_whole_cpus_and_calls_have_the_servers_delays_to_finish():
    threads = [Deployment(num_cpus=cpus, flags=CLEAR).threads for cpus in (0.0, 0.5, 1.9, 4.0)]
    assert threads == [1, 1, 1, 4]
    flags = (*CLEAR, "--drain-delay-s", "2", "--grace-s", "7")
    assert Deployment(flags=flags).drain_s == 9


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
Look = tuple[Sequence[Report] | Report, int, int]


def refusals(*looks):
    """Return looks at reports of so many refused calls."""
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
