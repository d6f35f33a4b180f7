"""The processes that make the calls of a load test."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Final, Self

from gradwire.bench import generator
from gradwire.bench.calls import now
from gradwire.bench.generator import Batch, Connect, Phase
from gradwire.bench.scenarios import Flow

# Seconds from the last order to the first call.
_LEAD_S: Final = 0.05
# Seconds that calls have to end which the user has stopped, and processes to end.
_ENDING_S: Final = 5.0


class FleetError(RuntimeError):
    """A process ended that should not have."""


class Fleet:
    """Processes that make calls, started by spawn and ended with the block."""

    def __init__(self, connect: Connect, *, processes: int, connections: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections = connections
        self._pipes: list[Pipe] = []
        self._processes: list[SpawnProcess] = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=generator.main, args=(theirs, connect), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(
        self,
        flows: Sequence[Flow],
        *,
        warm_up_s: float,
        duration_s: float,
        timeout_s: float,
        on_begin: Callable[[float], None],
        on_batch: Callable[[Batch], None],
        on_tick: Callable[[], None],
    ) -> bool:
        """Run a phase in all processes; return whether it came to its end.

        on_begin  called before the first call, with the time from which on calls count
        on_batch  called with what the processes tell
        on_tick   called some times a second

        False where the user has ended it; what was under way then is told all the same.
        """
        for number, pipe in enumerate(self._pipes):
            phase = Phase(
                flows=tuple(flows),
                warm_up_s=warm_up_s,
                duration_s=duration_s,
                timeout_s=timeout_s,
                connections=self._connections,
                number=number,
                processes=len(self._pipes),
            )
            pipe.send(phase)
        try:
            for pipe in self._pipes:
                # READY; there is no hurry any more.
                _received(pipe)
            begin = now() + _LEAD_S + warm_up_s
            on_begin(begin)
            for pipe in self._pipes:
                pipe.send(begin)
            self._collect(on_batch, on_tick, until=float("inf"))
        except KeyboardInterrupt:
            for pipe in self._pipes:
                pipe.send(None)
            self._collect(on_batch, on_tick, until=now() + _ENDING_S)
            return False
        return True

    def _collect(
        self, on_batch: Callable[[Batch], None], on_tick: Callable[[], None], *, until: float
    ) -> None:
        left = set(self._pipes)
        while left and now() < until:
            ready = wait(list(left), timeout=0.1)
            for pipe in [pipe for pipe in left if pipe in ready]:
                batch = _received(pipe)
                if not isinstance(batch, Batch):
                    continue
                on_batch(batch)
                if batch.over:
                    left.discard(pipe)
            on_tick()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_ENDING_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def _received(pipe: Pipe) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise FleetError("a process that makes calls has ended") from None
