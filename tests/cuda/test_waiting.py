"""Calls that wait for a stream of the device: their order, and which are computed together."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.backends.cuda import waiting
from gradwire_server.backends.cuda.device import DeviceLostError
from gradwire_server.backends.cuda.waiting import Slots, Waiter


@dataclass(frozen=True, eq=False)
class Some:
    """What decides who is computed with whom."""

    key: str | None
    nbytes: int


keys = st.sampled_from(["a", "b", None])
calls = st.builds(Some, keys, st.integers(1, waiting.MOST_BYTES_TOGETHER))


@given(first=calls, others=st.lists(calls, max_size=200))
def test_equal_calls_join_in_their_order_while_they_fit(first: Some, others: list[Some]) -> None:
    joined = waiting.joining(first, others)
    assert [one for one in others if one in joined] == joined
    assert all(one.key == first.key is not None for one in joined)
    together = [first, *joined]
    assert len(together) <= waiting.MOST_TOGETHER
    assert sum(one.nbytes for one in joined) <= max(0, waiting.MOST_BYTES_TOGETHER - first.nbytes)


@given(count=st.integers(0, 200), nbytes=st.integers(1, 1 << 16))
def test_as_many_equal_calls_join_as_may(count: int, nbytes: int) -> None:
    others = [Some("a", nbytes) for _ in range(count)]
    fitting = min(waiting.MOST_TOGETHER, waiting.MOST_BYTES_TOGETHER // nbytes) - 1
    assert len(waiting.joining(Some("a", nbytes), others)) == min(count, fitting)


def _wait_for(slots: Slots[str, int], count: int) -> None:
    while slots.waiting < count:
        time.sleep(0.001)


def _asking(pool: ThreadPoolExecutor, slots: Slots[str, int], *keys: str) -> list[_Asked]:
    """Let calls ask for a slot, one after the other."""
    asked = list[_Asked]()
    for key in keys:
        waiter = Waiter[str, int](key, key, 1)
        asked.append(_Asked(waiter, pool.submit(slots.take, waiter)))
        _wait_for(slots, len(asked))
    return asked


@dataclass(frozen=True)
class _Asked:
    waiter: Waiter[str, int]
    slot: Future[int | None]


def test_a_slot_goes_to_the_first_that_waits_and_to_those_like_it() -> None:
    slots = Slots[str, int]([7])
    assert slots.take(Waiter("x", "x", 1)) == 7
    assert slots.take_idle() is None
    with ThreadPoolExecutor(5) as pool:
        a, b, again, other, last = _asking(pool, slots, "a", "b", "a", "b", "a")
        slots.give_back(7)
        assert a.slot.result() == 7
        assert a.waiter.joined == [again.waiter, last.waiter]
        waiting.send_off(a.waiter.joined, done=True)
        assert again.slot.result() is last.slot.result() is None
        assert again.waiter.done
        slots.give_back(7)
        assert b.slot.result() == 7
        waiting.send_off(b.waiter.joined, lost="gone")
        with pytest.raises(DeviceLostError, match="gone"):
            other.slot.result()
    slots.give_back(7)
    assert slots.take_idle() == 7


def test_the_slot_used_last_is_taken_first() -> None:
    slots = Slots[str, int]([1, 2, 3])
    taken = [slots.take(Waiter("x", "x", 1)) for _ in range(3)]
    for one in (2, 3, 1):
        slots.give_back(one)
    assert sorted(map(str, taken)) == ["1", "2", "3"]
    assert [slots.take_idle() for _ in range(4)] == [1, 3, 2, None]
