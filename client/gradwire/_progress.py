"""Tells a caller how far a transfer is."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds between two reports.
INTERVAL_S = 0.1


class Progress:
    """Calls on_progress(sent_bytes, received_bytes), never going back and not too often.

    on_progress  None where nobody wants to know
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], object] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._told = (0, 0)
        self._next_at = clock()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants to know."""
        return self._on_progress is not None

    def report(self, sent_bytes: int, received_bytes: int) -> None:
        """Report where things stand, unless nothing is new or the last report is too fresh."""
        if self._on_progress is None or self._clock() < self._next_at:
            return
        reached = max(sent_bytes, self._told[0]), max(received_bytes, self._told[1])
        if reached != self._told:
            self._tell(reached)

    def finish(self, sent_bytes: int, received_bytes: int) -> None:
        """Report the end."""
        if self._on_progress is not None:
            self._tell((sent_bytes, received_bytes))

    def _tell(self, reached: tuple[int, int]) -> None:
        self._told = reached
        if self._on_progress is not None:
            self._on_progress(*reached)
        self._next_at = self._clock() + INTERVAL_S
