"""Laws of the queue: who is served when, and that nobody is forgotten."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.scheduling.fair_queue import FairQueue, QueueEntry

COSTS = st.floats(0.001, 1.0)
PEERS = st.sampled_from("abc")


@dataclass(frozen=True)
class Piece:
    """Something to queue."""

    peer: str
    cost_s: float
    large: bool = False
    deadline: float = math.inf


PIECES = st.builds(
    Piece, PEERS, COSTS, st.booleans(), st.one_of(st.just(math.inf), st.floats(0, 10))
)


def entry(number: int, piece: Piece) -> QueueEntry[int]:
    """Return the entry of a piece; item and number are the same."""
    return QueueEntry(
        item=number,
        number=number,
        peer=piece.peer,
        cost_s=piece.cost_s,
        needs_s=piece.cost_s,
        large=piece.large,
        due=piece.deadline,
        deadline=piece.deadline,
    )


def filled(pieces: list[Piece]) -> tuple[FairQueue[int], list[QueueEntry[int]]]:
    """Queue pieces, numbered from 0 on; item and number are the same."""
    queue: FairQueue[int] = FairQueue()
    places = [entry(number, piece) for number, piece in enumerate(pieces)]
    for place in places:
        queue.push(place)
    return queue, places


def drained(queue: FairQueue[int]) -> list[QueueEntry[int]]:
    return [queue.pop() for _ in range(len(queue))]


@given(st.lists(PIECES))
def test_what_is_queued_comes_out_once(pieces: list[Piece]) -> None:
    queue, places = filled(pieces)
    assert len(queue) == len(pieces)
    assert sorted(place.item for place in drained(queue)) == [place.item for place in places]
    with pytest.raises(IndexError):
        queue.pop()


@given(st.lists(PIECES), st.data())
def test_what_is_taken_out_does_not_come(pieces: list[Piece], data: st.DataObject) -> None:
    queue, places = filled(pieces)
    gone = [place for place in places if data.draw(st.booleans())]
    assert all(queue.remove(place) for place in gone)
    assert not any(queue.remove(place) for place in gone)
    left = [place.item for place in places if place not in gone]
    assert sorted(place.item for place in drained(queue)) == left


@given(st.lists(PIECES))
def test_within_a_flow_what_is_due_first_goes_first_and_then_who_came_first(
    pieces: list[Piece],
) -> None:
    order = drained(filled(pieces)[0])
    for peer in "abc":
        for large in (False, True):
            flow = [place for place in order if (place.peer, place.large) == (peer, large)]
            assert flow == sorted(flow, key=lambda place: (place.due, place.number))


@given(st.lists(PIECES), st.floats(0, 10))
def test_only_what_cannot_be_done_in_time_expires(pieces: list[Piece], now: float) -> None:
    queue, _ = filled(pieces)
    late = {place.item for place in queue.expire(now)}
    assert late == {
        number for number, piece in enumerate(pieces) if now > piece.deadline - piece.cost_s
    }
    assert len(queue) == len(pieces) - len(late)


def served(order: list[QueueEntry[int]], upto: int, flow: object, *, large: bool = False) -> float:
    """Seconds of work that a caller, or one size of a caller, got from the first places."""
    return sum(
        place.cost_s
        for place in order[:upto]
        if (place.peer, place.large) == flow or (not large and place.peer == flow)
    )


@given(st.lists(st.lists(COSTS, min_size=1, max_size=20), min_size=2, max_size=4))
def test_callers_share_the_work_alike_as_long_as_they_want_any(costs: list[list[float]]) -> None:
    pieces = [Piece(str(peer), cost) for peer, own in enumerate(costs) for cost in own]
    order = drained(filled(pieces)[0])
    waiting: Counter[object] = Counter(piece.peer for piece in pieces)
    for upto, place in enumerate(order, 1):
        # Start-time fair queueing promises two flows that both wait shares that differ by no more
        # than the largest piece of each.
        for one, other in combinations(waiting, 2):
            if waiting[one] and waiting[other]:
                difference = abs(served(order, upto, one) - served(order, upto, other))
                assert difference <= max(costs[int(str(one))]) + max(costs[int(str(other))]) + 1e-9
        waiting[place.peer] -= 1


@given(
    st.lists(COSTS, min_size=1, max_size=20),
    st.lists(st.floats(1.0, 20.0), min_size=1, max_size=5),
)
def test_many_small_and_few_huge_pieces_of_a_caller_share_alike(
    small: list[float], huge: list[float]
) -> None:
    pieces = [Piece("a", cost, large=True) for cost in huge]
    pieces += [Piece("a", cost) for cost in small]
    order = drained(filled(pieces)[0])
    left = {False: len(small), True: len(huge)}
    for upto, place in enumerate(order, 1):
        if all(left.values()):
            shares = [served(order, upto, ("a", large), large=True) for large in (False, True)]
            assert abs(shares[0] - shares[1]) <= max(small) + max(huge) + 1e-9
        left[place.large] -= 1


@given(st.lists(COSTS, min_size=5, max_size=40))
def test_who_comes_late_does_not_wait_for_all_of_a_greedy_caller(costs: list[float]) -> None:
    queue, _ = filled([Piece("greedy", cost) for cost in costs])
    queue.pop()
    queue.push(entry(1000, Piece("modest", 1.0)))
    assert 1000 in {queue.pop().item, queue.pop().item}


def test_who_was_idle_has_saved_nothing_up() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(100):
        queue.push(entry(number, Piece("busy", 1.0)))
    for _ in range(50):
        queue.pop()
    for number in range(100, 120):
        queue.push(entry(number, Piece("idle", 1.0)))
    first = [queue.pop().peer for _ in range(20)]
    assert abs(first.count("busy") - first.count("idle")) <= 1


def test_the_entries_of_each_caller_are_counted() -> None:
    queue, places = filled([Piece("a", 1.0), Piece("b", 1.0), Piece("a", 1.0, large=True)])
    assert [queue.waiting(peer) for peer in "abc"] == [2, 1, 0]
    queue.remove(places[0])
    queue.remove(places[1])
    assert [queue.waiting(peer) for peer in "abc"] == [1, 0, 0]
