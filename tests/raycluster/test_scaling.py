"""More replicas at once when calls wait, fewer when fewer have long been enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradwire_ray.deployment import Deployment
from gradwire_ray.replica import Report
from gradwire_ray.scaling import Scaling

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
