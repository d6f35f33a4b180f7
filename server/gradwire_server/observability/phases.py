"""Time that one call spends in each phase."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
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

    Phases of a stream overlap: their sum may exceed the call's duration.

    bounds   first begin and last end of each phase, by time.perf_counter; absent if it never began
    at_once  number of calls now in each phase, if counted
    """

    def __init__(self, at_once: MutableMapping[Phase, int] | None = None) -> None:
        self.seconds: dict[Phase, float] = {
            "receive": 0.0,
            "queue": 0.0,
            "compute": 0.0,
            "send": 0.0,
        }
        self.bounds: dict[Phase, tuple[float, float]] = {}
        self.at_once = dict.fromkeys(PHASES, 0) if at_once is None else at_once

    def told(self) -> str:
        """Format them as the header Server-Timing, in ms: "receive;dur=0.042, ..."."""
        receive, queue, compute, send = self.seconds.values()
        return (
            f"receive;dur={1e3 * receive:.3f}, queue;dur={1e3 * queue:.3f}, "
            f"compute;dur={1e3 * compute:.3f}, send;dur={1e3 * send:.3f}"
        )

    def note(self, phase: Phase, began: float, ended: float) -> None:
        """Add a past interval of a phase, by time.perf_counter; leaving `at_once` unchanged."""
        self.seconds[phase] += ended - began
        if phase in self.bounds:
            began = self.bounds[phase][0]
        self.bounds[phase] = began, ended

    def spending(self, phase: Phase) -> _Spending:
        """Add the duration of the block to a phase."""
        return _Spending(self, phase)


class _Spending:
    """One interval of a phase. A class, since a generator takes several times as long."""

    __slots__ = ("_began", "_phase", "_phases")

    def __init__(self, phases: Phases, phase: Phase) -> None:
        self._phases = phases
        self._phase: Phase = phase

    def __enter__(self) -> None:
        self._phases.at_once[self._phase] += 1
        self._began = time.perf_counter()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ended = time.perf_counter()
        phases, phase = self._phases, self._phase
        phases.note(phase, self._began, ended)
        phases.at_once[phase] -= 1
