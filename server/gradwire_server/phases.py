"""Where the time of one call goes."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
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

    def told(self) -> str:
        """Write them as the header Server-Timing does, in ms: "receive;dur=0.042, ..."."""
        return ", ".join([f"{phase};dur={1e3 * s:.3f}" for phase, s in self.seconds.items()])

    @contextmanager
    def spending(self, phase: Phase) -> Generator[None]:
        """Add what the block takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started
