"""Detection of a lost device: a lasting error, or work that hangs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

from gradwire_server.errors import RETRY_AFTER_S, DeviceLostError
from gradwire_server.observability import logs

T = TypeVar("T")

# Exit status of a process whose device is lost.
LOST_STATUS = 3
# Parts of the stall time, counted by timers: a process that was itself suspended for long must not
# take its device for lost.
_PARTS = 4


class DeviceWatch:
    """Detector of the loss of this process's device.

    Belongs to one event loop.

    lost            set once the device is lost for good
    error           the error of every call from then on
    listeners_shut  clear while this process listens: callers get the error only once it is set, so
                    that none of them connects to this process again

    stall_timeout_s  seconds after which a call to the device counts as lost
    """

    def __init__(self, *, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._at_work = dict[Future[Any], int]()
        self._timer: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        self.error: DeviceLostError | None = None
        self.listeners_shut = asyncio.Event()
        self.listeners_shut.set()

    async def result(self, done: Future[T]) -> T:
        """Return the result of work on the device, in a thread.

        The work is watched even after the caller stopped waiting.

        Raises DeviceLostError if the device is lost meanwhile.
        """
        self._at_work[done] = 0
        done.add_done_callback(lambda ended: self._at_work.pop(ended, None))
        if self._timer is None:
            self._wait_on()
        try:
            return await asyncio.wrap_future(done)
        except DeviceLostError as error:
            lost = self.lose(str(error))
        await self.listeners_shut.wait()
        raise lost

    def lose(self, why: str) -> DeviceLostError:
        """Note that the device is lost; return the error for calls."""
        if self.error is None:
            self.error = DeviceLostError(
                f"the device is lost: {why}; another process opens it: "
                f"retry after {RETRY_AFTER_S} s"
            )
            self.lost.set()
            logs.error("device lost", error=why, status=LOST_STATUS)
        return self.error

    def _wait_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stall_timeout_s / _PARTS, self._look)

    def _look(self) -> None:
        self._timer = None
        for done, parts in list(self._at_work.items()):
            if done.running():
                self._at_work[done] = parts + 1
                if done.done():  # meanwhile, before the callback could find it
                    self._at_work.pop(done, None)
                if parts == _PARTS:
                    self.lose(
                        f"it has not answered for {self._stall_timeout_s} s "
                        "(GRADWIRE_STALL_TIMEOUT_S)"
                    )
                    return
        if self._at_work:
            self._wait_on()
