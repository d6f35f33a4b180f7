"""A call takes the least busy of a client's connections, and none that has just failed."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradwire import CallCancelledError
from gradwire._transport.channels import AVOIDED_S, Pool


class Opened:
    """Connections that were opened, each named after its target and its number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.now = 100.0

    def __call__(self, target: str) -> str:
        self.names.append(f"{target}{sum(name[0] == target for name in self.names)}")
        return self.names[-1]

    def clock(self) -> float:
        return self.now


def connections(pool: Pool[str], count: int) -> list[str]:
    """Return those of so many calls at once."""
    return [pool.take()[1] for _ in range(count)]


def end_calls(pool: Pool[str], count: int, *, failed: bool) -> None:
    """Begin so many calls, and end them all."""
    for seat in [pool.take()[0] for _ in range(count)]:
        pool.give_back(seat, failed=failed)


@pytest.fixture
def opened() -> Opened:
    return Opened()


def test_calls_one_after_the_other_share_a_connection(opened: Opened) -> None:
    pool = Pool("a", opened, connections=3)
    for _ in range(5):
        seat, connection = pool.take()
        assert connection == "a0"
        pool.give_back(seat, failed=False)
    assert opened.names == ["a0"]


def test_calls_at_once_spread_evenly(opened: Opened) -> None:
    pool = Pool("a", opened, connections=3)
    taken = [pool.take() for _ in range(7)]
    assert [connection for _, connection in taken] == ["a0", "a1", "a2", "a0", "a1", "a2", "a0"]
    for seat, _ in (taken[1], taken[4]):
        pool.give_back(seat, failed=False)
    assert connections(pool, 4) == ["a1", "a1", "a1", "a2"]


def test_targets_take_turns(opened: Opened) -> None:
    pool = Pool("ab", opened, connections=2)
    seen: list[str] = []
    for _ in range(6):
        seat, connection = pool.take()
        seen.append(connection[0])
        pool.give_back(seat, failed=False)
    assert sorted(seen) == sorted("ababab")
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert sorted(opened.names) == ["a0", "b0"]


def test_calls_at_once_spread_over_targets_first(opened: Opened) -> None:
    pool = Pool("abc", opened, connections=2)
    assert sorted(connections(pool, 3)) == ["a0", "b0", "c0"]
    assert sorted(connections(pool, 3)) == ["a1", "b1", "c1"]


def test_a_connection_that_failed_is_avoided_for_a_while(opened: Opened) -> None:
    pool = Pool("a", opened, connections=2, clock=opened.clock)
    end_calls(pool, 1, failed=True)
    assert connections(pool, 3) == ["a1"] * 3
    opened.now += AVOIDED_S
    assert pool.take()[1] == "a0"


def test_rather_than_another_connection_to_where_one_failed_another_target_is_taken(
    opened: Opened,
) -> None:
    pool = Pool("ab", opened, connections=2, clock=opened.clock)
    failed, connection = pool.take()
    pool.give_back(failed, failed=True)
    other = "b" if connection[0] == "a" else "a"
    assert {name[0] for name in connections(pool, 4)} == {other}
    opened.now += AVOIDED_S
    assert pool.take()[1][0] == connection[0]


def test_where_every_target_failed_a_connection_that_did_not_is_taken(opened: Opened) -> None:
    pool = Pool("ab", opened, connections=2, clock=opened.clock)
    end_calls(pool, 2, failed=True)
    assert sorted(connections(pool, 2)) == ["a1", "b1"]


def test_where_every_connection_failed_the_least_busy_is_taken(opened: Opened) -> None:
    pool = Pool("a", opened, connections=2, clock=opened.clock)
    end_calls(pool, 2, failed=True)
    assert connections(pool, 4) == ["a0", "a1", "a0", "a1"]


def test_a_closed_pool_opens_nothing(opened: Opened) -> None:
    pool = Pool("a", opened, connections=2)
    seat, connection = pool.take()
    assert pool.close() == [connection]
    pool.give_back(seat, failed=False)
    with pytest.raises(CallCancelledError, match="closed"):
        pool.take()
    assert opened.names == ["a0"]


def test_threads_never_lose_count() -> None:
    pool = Pool("ab", str, connections=2)

    def call() -> None:
        for number in range(2000):
            seat, _ = pool.take()
            pool.give_back(seat, failed=number % 7 == 0)

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(call) for _ in range(8)]:
            each.result()
    assert {pool.take()[0].calls for _ in range(4)} == {1}


def test_new_targets_take_turns_with_those_that_stay(opened: Opened) -> None:
    closed: list[str] = []
    pool = Pool("ab", opened, connections=1, close_one=closed.append)
    end_calls(pool, 2, failed=False)
    pool.renew("bc")
    assert sorted(connections(pool, 4)) == ["b0", "b0", "c0", "c0"]
    assert closed == ["a0"]


def test_a_target_that_goes_ends_its_calls_first(opened: Opened) -> None:
    closed: list[str] = []
    pool = Pool("a", opened, connections=1, close_one=closed.append)
    first, second = pool.take()[0], pool.take()[0]
    pool.renew("b")
    assert pool.take()[1] == "b0"
    pool.give_back(first, failed=False)
    assert not closed
    pool.give_back(second, failed=True)
    assert closed == ["a0"]


def test_closing_finds_the_connections_of_targets_that_went(opened: Opened) -> None:
    pool = Pool("a", opened, connections=2, close_one=opened.names.remove)
    pool.take()
    pool.renew("b")
    pool.take()
    assert sorted(pool.close()) == ["a0", "b0"]
    pool.renew("c")
    with pytest.raises(CallCancelledError):
        pool.take()
