"""Calls repeated in threads while a test changes the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.raw_calls import wait_until


@dataclass
class Load:
    """What the callers saw until now: calls that ended, and how they failed."""

    calls: int = 0
    failures: list[object] = field(default_factory=list[object])

    def wait_for_more(self, count: int) -> None:
        seen = self.calls + count
        wait_until(lambda: self.calls >= seen)


@contextmanager
def repeated(ask: Callable[[], object], *, threads: int = 3) -> Generator[Load]:
    """Repeat a call, which returns how it failed or None, until the block ends; none may fail."""
    load, over = Load(), threading.Event()

    def repeat() -> None:
        while not over.is_set():
            failure = ask()
            load.calls += 1
            if failure is not None:
                load.failures.append(failure)

    running = [threading.Thread(target=repeat) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield load
    finally:
        over.set()
        for thread in running:
            thread.join()
    assert not load.failures
