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


def test_threads_are_whole_cpus_and_one_at_least() -> None:
    threads = [Deployment(num_cpus=cpus, flags=CLEAR).threads for cpus in (0.0, 0.5, 1.9, 4.0)]
    assert threads == [1, 1, 1, 4]


def test_calls_have_the_servers_drain_delay_and_grace_to_finish() -> None:
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
    assert heard(report, ago_s=ago_s).state == state


@pytest.mark.parametrize("report", [None, WELL, Report(failure="no such file")], ids=str)
def test_a_replica_that_is_told_to_stop_leaves(report: Report | None) -> None:
    member = heard(report)
    member.stopping = threading.Thread()
    assert member.state == "leaving"


def test_a_replica_that_was_silent_comes_back_with_its_next_report() -> None:
    member = heard(WELL, ago_s=9.0)
    states = [member.state]
    member.take(WELL)
    assert [*states, member.state] == ["silent", "serving"]


IDLE = Report()
FULL = Report(waiting=1.5, busy=1.0)
_DOWN_S = 10.0


class Scaled:
    """A scaling with a clock of its own, looked at once a second."""

    def __init__(self, *, least: int = 1, most: int = 8) -> None:
        self.now = 0.0
        self._scaling = Scaling(
            Deployment(least=least, most=most, down_after_s=_DOWN_S, flags=["--insecure"]),
            clock=lambda: self.now,
        )

    def look(self, reports: Sequence[Report] | Report, *, times: int = 1) -> int:
        """Look so many times; a single report is that of all there are to be."""
        for _ in range(times):
            self.now += 1.0
            seen = [reports] * self._scaling.wanted if isinstance(reports, Report) else reports
            self._scaling.look(seen)
        return self._scaling.wanted


def test_a_burst_places_none() -> None:
    scaled = Scaled()
    assert [scaled.look(one) for one in (FULL, IDLE, FULL, IDLE)] == [1, 1, 1, 1]


def test_a_queue_that_stands_places_as_many_as_it_takes_and_at_most_twice_as_many() -> None:
    scaled = Scaled(least=4, most=100)
    assert scaled.look(FULL, times=2) == 6
    assert scaled.look(Report(waiting=50.0, busy=1.0), times=2) == 12


def test_none_is_placed_before_the_last_ones_serve() -> None:
    scaled = Scaled()
    assert scaled.look(FULL, times=2) == 2
    assert scaled.look([FULL], times=20) == 2
    assert scaled.look([FULL, FULL], times=2) == 3


def test_refusals_count_as_twice_the_load_there_is() -> None:
    scaled = Scaled(least=2)
    assert [scaled.look(Report(refused=count)) for count in (1, 3, 3)] == [2, 4, 4]


def test_refusals_of_a_single_moment_place_none() -> None:
    scaled = Scaled()
    assert [scaled.look(Report(refused=count)) for count in (3, 3, 5, 5)] == [1, 1, 1, 1]


def test_a_refusal_starts_the_wait_anew() -> None:
    scaled = Scaled()
    scaled.look(FULL, times=2)
    for count in range(1, 6):
        assert scaled.look(Report(refused=count), times=9) == 2


def test_a_full_event_loop_counts_though_nothing_waits() -> None:
    assert Scaled(least=2).look(Report(loop=0.99), times=2) == 3
    assert Scaled(least=2).look(Report(loop=0.85), times=9) == 2


def test_busy_threads_alone_place_none() -> None:
    assert Scaled().look(Report(busy=1.0), times=30) == 1


@pytest.mark.parametrize("load", [FULL, Report(waiting=9.0), Report(loop=1.0)], ids=str)
def test_there_are_never_more_than_most(load: Report) -> None:
    assert Scaled(most=3).look(load, times=20) == 3


def test_one_goes_whenever_fewer_have_been_enough_for_long() -> None:
    scaled = Scaled()
    scaled.look(FULL, times=2)
    scaled.look(FULL, times=2)
    assert scaled.look(IDLE, times=10) == 3
    assert scaled.look(IDLE, times=1) == 2
    assert scaled.look(IDLE, times=10) == 2
    assert scaled.look(IDLE, times=100) == 1


@pytest.mark.parametrize("load", [Report(busy=0.5), Report(waiting=0.4), Report(loop=0.5)], ids=str)
def test_none_goes_that_the_others_could_not_replace(load: Report) -> None:
    scaled = Scaled()
    scaled.look(FULL, times=2)
    assert scaled.look(load, times=100) == 2


def test_a_busy_moment_starts_the_wait_anew() -> None:
    scaled = Scaled()
    scaled.look(FULL, times=2)
    for _ in range(5):
        assert scaled.look(IDLE, times=9) == 2
        assert scaled.look(Report(busy=0.9)) == 2
