"""Laws of the queue: who is served when, and that nobody is forgotten."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.scheduling.fair_queue import FairQueue

COSTS = st.floats(0.001, 1.0)


@dataclass(eq=False)
class Piece:
    """Something to queue."""

    flow: Hashable
    cost_s: float
    due: float = math.inf


PIECES = st.lists(
    st.builds(Piece, st.sampled_from("abc"), COSTS, st.just(math.inf) | st.floats(0, 10))
)


def next_of(queue: FairQueue[Piece]) -> Piece:
    entry = queue.pop()
    queue.charge(entry)
    return entry


def filled(pieces: list[Piece]) -> FairQueue[Piece]:
    queue: FairQueue[Piece] = FairQueue()
    for piece in pieces:
        queue.push(piece)
    return queue


def drained(queue: FairQueue[Piece]) -> list[Piece]:
    return [next_of(queue) for _ in range(len(queue))]


@given(PIECES, st.data())
def test_what_is_queued_comes_out_once_unless_it_is_taken_out(
    pieces: list[Piece], data: st.DataObject
) -> None:
    queue = filled(pieces)
    gone = {piece for piece in pieces if data.draw(st.booleans())}
    for piece in [*gone, *gone]:
        queue.remove(piece)
    left = Counter(piece.flow for piece in pieces if piece not in gone)
    assert {flow: queue.waiting(flow) for flow in "abc"} == {flow: left[flow] for flow in "abc"}
    assert Counter(drained(queue)) == Counter(piece for piece in pieces if piece not in gone)
    with pytest.raises(ValueError, match="empty"):
        next_of(queue)


@given(PIECES)
def test_within_a_flow_what_is_due_first_goes_first_and_then_who_came_first(
    pieces: list[Piece],
) -> None:
    order = drained(filled(pieces))
    for flow in "abc":
        own = [piece for piece in pieces if piece.flow == flow]
        assert [one for one in order if one.flow == flow] == sorted(own, key=lambda one: one.due)


@given(st.lists(st.lists(COSTS, min_size=1, max_size=20), min_size=2, max_size=4))
def test_flows_share_the_work_alike_as_long_as_they_want_any(costs: list[list[float]]) -> None:
    pieces = [Piece(flow, cost) for flow, own in enumerate(costs) for cost in own]
    waiting: Counter[Hashable] = Counter(piece.flow for piece in pieces)
    served = dict.fromkeys(range(len(costs)), 0.0)
    for piece in drained(filled(pieces)):
        flow = int(str(piece.flow))
        served[flow] += piece.cost_s
        # Start-time fair queueing promises two flows that both wait shares that differ by no more
        # than the largest piece of each.
        for one, other in combinations(served, 2):
            if waiting[one] and waiting[other]:
                difference = abs(served[one] - served[other])
                assert difference <= max(costs[one]) + max(costs[other]) + 1e-9
        waiting[flow] -= 1


@given(st.lists(COSTS, min_size=5, max_size=40))
def test_who_comes_late_does_not_wait_for_all_of_a_greedy_flow(costs: list[float]) -> None:
    queue = filled([Piece("greedy", cost) for cost in costs])
    next_of(queue)
    modest = Piece("modest", 1.0)
    queue.push(modest)
    assert modest in {next_of(queue), next_of(queue)}


def test_who_was_idle_has_saved_nothing_up() -> None:
    queue = filled([Piece("busy", 1.0) for _ in range(100)])
    for _ in range(50):
        next_of(queue)
    for _ in range(20):
        queue.push(Piece("idle", 1.0))
    first = [next_of(queue).flow for _ in range(20)]
    assert abs(first.count("busy") - first.count("idle")) <= 1


def test_what_is_dropped_costs_its_flow_nothing() -> None:
    late = [Piece("a", 1.0, due=number) for number in range(40)]
    queue = filled([*late, Piece("a", 1.0), *(Piece("b", 1.0) for _ in range(50))])
    for piece in late:
        queue.remove(piece)
    served = [next_of(queue).flow for _ in range(3)]
    assert "a" in served[:2]
    queue = filled([*late, Piece("a", 1.0), *(Piece("b", 1.0) for _ in range(50))])
    served.clear()
    while len(served) < 3:
        entry = queue.pop()
        if entry not in late:
            queue.charge(entry)
            served.append(entry.flow)
    assert "a" in served[:2]
