"""The list holds replicas that report, whose server runs, and that were not told to stop."""

from __future__ import annotations

import threading

import pytest

from gradwire_ray.controller import Member
from gradwire_ray.replica import Report

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
