"""The processes that make the calls of a load test."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
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
        self._connections = connections
        self._pipes: list[Pipe] = []
        self._processes: list[SpawnProcess] = []
        # It unblocks signals once it runs.
        resource_tracker.ensure_running()
        try:
            for _ in range(processes):
                with _undisturbed():
                    self._start(connect)
        except BaseException:
            self._end()
            raise

    def _start(self, connect: Connect) -> None:
        context = multiprocessing.get_context("spawn")
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
    ) -> KeyboardInterrupt | None:
        """Run a phase in all processes; return what ended it before its end, if anything did.

        on_begin  called before the first call, with the time from which on calls count
        on_batch  called with what the processes tell
        on_tick   called some times a second

        What was under way when the user ended it is told all the same, as stopped.
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
        except KeyboardInterrupt as error:
            for pipe in self._pipes:
                with suppress(BrokenPipeError):
                    pipe.send(None)
            self._collect(on_batch, on_tick, until=now() + _ENDING_S)
            return error
        return None

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
        self._end()

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_ENDING_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


@contextmanager
def _undisturbed() -> Generator[None]:
    """Put off what would end the program until the block ends, and have its processes not hear it.

    They inherit what is blocked, so that a signal to all of a group does not end them before they
    can ignore it. Other threads of this process may take it; a handler then only notes it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    usual = {
        number: signal.signal(number, lambda came, _: noted.append(came))
        for number in generator.ENDING
        if callable(signal.getsignal(number))
    }
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, generator.ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in usual.items():
            signal.signal(number, handler)
    for came in noted:
        signal.raise_signal(came)


def _received(pipe: Pipe) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise FleetError("a process that makes calls has ended") from None
