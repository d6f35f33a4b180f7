"""Whom the controller lists: those that tell, by a server that tells, and were not told to go."""

from __future__ import annotations

import pytest

from gradwire_ray.controller import Member
from gradwire_ray.load import Load
from gradwire_ray.replica import Report


def reported(*, silent_s: float = 0.4, stopping: bool = False, refused: int = 0) -> Report:
    return Report(
        address="127.0.0.1:1",
        host="127.0.0.1",
        pid=1,
        load=Load(refused=refused),
        silent_s=silent_s,
        stopping=stopping,
    )


def test_a_member_starts_until_it_has_told() -> None:
    assert Member("a", None).state == "starting"


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (reported(), "serving"),
        (reported(silent_s=4.0), "serving"),
        (reported(silent_s=6.0), "silent"),
        (reported(stopping=True), "leaving"),
    ],
    ids=("well", "busy", "hanging", "stopping"),
)
def test_a_member_is_what_it_tells(report: Report, state: str) -> None:
    member = Member("a", None)
    member.take(report)
    assert member.state == state


def test_a_member_that_hung_comes_back_when_its_server_tells() -> None:
    member = Member("a", None)
    for silent_s, state in ((9.0, "silent"), (0.0, "serving")):
        member.take(reported(silent_s=silent_s))
        assert member.state == state


def test_refusals_are_counted_once_and_not_those_before_the_first_report() -> None:
    member = Member("a", None)
    assert [member.take(reported(refused=count)) for count in (0, 3, 3, 5)] == [0, 3, 0, 2]
