"""Work in a thread of its own that goes on one turn at a time.

Tables are built deep in calls of NumPy: no generator could stop there to let others pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Semaphore, Thread
from types import TracebackType
from typing import Generic, Self, TypeVar

from gradwire_server.plans.cancellation import AbandonedError, Check

T = TypeVar("T")


class TurnedWork(Generic[T]):
    """Work that is done a turn at a time, in a thread of its own that waits between turns.

    Whoever calls turn() waits meanwhile, so that never more threads run than call it. As a context
    it ends what has begun and is not done.

    work    takes a check to be called again and again: it waits where a turn is over, and raises
            AbandonedError where no other follows
    turn_s  seconds of a turn, which lasts to the next check
    """

    def __init__(self, work: Callable[[Check], T], *, turn_s: float) -> None:
        self._work = work
        self._turn_s = turn_s
        self._until = 0.0
        self._abandoned = False
        self._begins, self._ends = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._outcome: Future[T] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._abandoned = True
        self._begins.release()

    def turn(self) -> bool:
        """Go on for a turn; return whether there is more to do."""
        self._until = time.perf_counter() + self._turn_s
        if self._thread is None:
            self._thread = Thread(target=self._run, name="gradwire-tables", daemon=True)
            self._thread.start()
        else:
            self._begins.release()
        self._ends.acquire()
        return not self._outcome.done()

    def result(self) -> T:
        """Return what the work returned, or raise what it raised; it is done."""
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._work(self._check))
        except AbandonedError:
            # Its traceback would keep the tables.
            self._outcome.set_exception(AbandonedError())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._outcome.set_exception(error)
        finally:
            self._ends.release()

    def _check(self) -> None:
        if not self._abandoned and time.perf_counter() >= self._until:
            self._ends.release()
            self._begins.acquire()
        if self._abandoned:
            raise AbandonedError
