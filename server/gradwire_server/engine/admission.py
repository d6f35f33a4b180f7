"""Lets evaluations in while their memory fits, and refuses the rest at once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gradwire_server.errors import OverloadedError


class Admission:
    """The memory and the streams of all evaluations in flight. Used from one event loop only."""

    def __init__(self, *, max_memory_bytes: int, max_streams: int, retry_after_s: float) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._max_streams = max_streams
        self._retry_after_s = retry_after_s
        self.memory_bytes = 0
        self.streams = 0

    @contextmanager
    def memory(self, needed: int) -> Generator[None]:
        """Hold `needed` bytes of the budget; a request larger than all of it is let in alone."""
        if self.memory_bytes and self.memory_bytes + needed > self._max_memory_bytes:
            raise self._overloaded(
                f"requests in flight need {self.memory_bytes} bytes of memory, this one {needed}",
                "max_memory_bytes",
                self._max_memory_bytes,
            )
        self.memory_bytes += needed
        try:
            yield
        finally:
            self.memory_bytes -= needed

    @contextmanager
    def stream(self) -> Generator[None]:
        """Hold one of the places for streams."""
        if self.streams >= self._max_streams:
            raise self._overloaded(
                f"{self.streams} streams are open", "max_streams", self._max_streams
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    def _overloaded(self, came: str, limit: str, allowed: int) -> OverloadedError:
        return OverloadedError(
            f"{came}; this server allows {allowed} (its setting GRADWIRE_{limit.upper()}); "
            f"retry after {self._retry_after_s} s",
            retry_after_s=self._retry_after_s,
            limit=limit,
            allowed=allowed,
        )
