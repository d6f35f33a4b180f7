"""Where the time of one call goes."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal, get_args

Phase = Literal["receive", "queue", "compute", "send"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Phases:
    """Seconds that a call has spent in each phase.

    receive  reading and checking the request
    queue    waiting for the server's memory, threads and tables
    compute  computing
    send     encoding and writing the reply

    Those of a stream overlap: together they may be longer than the call.
    """

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)

    def spending(self, phase: Phase) -> Spending:
        """Add what the block takes."""
        return Spending(self.seconds, phase)


class Spending:
    """Measures one block. A generator would take longer than most of what it measures."""

    __slots__ = ("_phase", "_seconds", "_started")

    def __init__(self, seconds: dict[Phase, float], phase: Phase) -> None:
        self._seconds = seconds
        self._phase: Phase = phase

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._seconds[self._phase] += time.perf_counter() - self._started
