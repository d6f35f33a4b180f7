"""Calls that wait for memory: in order of arrival, and as long as others have some."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock

import pytest

from gradwire_server.backends.cuda.turns import Turns


@contextmanager
def _holding(turns: Turns, take: Callable[[], int], store: Store) -> Generator[int]:
    taken = turns.take(take)
    try:
        yield taken
    finally:
        store.give_back(taken)
        turns.end()


class Store:
    """So many things, of which calls take some."""

    def __init__(self, things: int) -> None:
        self.left = things
        self._lock, self._taking = Lock(), Lock()

    def take(self, count: int) -> int:
        """Take so many, or none; one call at a time is to do so."""
        assert self._taking.acquire(blocking=False)
        try:
            with self._lock:
                if self.left < count:
                    raise MemoryError
                self.left -= count
            return count
        finally:
            self._taking.release()

    def give_back(self, count: int) -> None:
        """Give so many back."""
        with self._lock:
            self.left += count


def test_what_is_too_much_for_one_alone_is_an_error_and_for_several_a_wait() -> None:
    turns, store = Turns(), Store(10)
    with pytest.raises(MemoryError), _holding(turns, lambda: store.take(11), store):
        pass
    sizes = [random.Random(1).randrange(1, 11) for _ in range(200)]  # noqa: S311 - no secret

    def call(size: int) -> int:
        with _holding(turns, lambda: store.take(size), store) as taken:
            assert taken == size
            return taken

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, sizes)) == sizes
    assert store.left == 10


def test_what_needs_all_is_not_overtaken_by_what_needs_little() -> None:
    turns, store = Turns(), Store(2)
    asked, order = Event(), list[str]()

    def large() -> int:
        asked.set()
        return store.take(2)

    def call(name: str) -> None:
        take = large if name == "large" else lambda: store.take(1)
        with _holding(turns, take, store):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with _holding(turns, lambda: store.take(1), store):
            first = pool.submit(call, "large")
            asked.wait()
            second = pool.submit(call, "small")
        first.result()
        second.result()
    assert order == ["large", "small"]


def test_an_error_ends_one_turn_and_no_other() -> None:
    turns, store = Turns(), Store(1)

    def fails() -> int:
        raise ValueError("taking")

    with pytest.raises(ValueError, match="taking"), _holding(turns, fails, store):
        pass
    with (
        pytest.raises(ValueError, match="using"),
        _holding(turns, lambda: store.take(1), store),
    ):
        raise ValueError("using")
    with _holding(turns, lambda: store.take(1), store):
        pass
    assert store.left == 1
