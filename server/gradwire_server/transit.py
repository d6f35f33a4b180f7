"""Messages of unary calls on their way: what grpc holds for callers, however slow they are.

By itself grpc waits for the end of a request as long as its connection lasts, and keeps a reply
that nobody reads as long. Here a request has the time that a stream may be without progress. One
that is not there in a moment holds as much of the memory budget as it may come to, and a reply
holds its bytes until grpc has sent them. Of the budget one caller has a share in this way, so that
there is room for the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import Any

import grpc

from gradwire_server.callers import caller_of
from gradwire_server.calls import Context
from gradwire_server.encoding import Malformed
from gradwire_server.engine import Admission
from gradwire_server.errors import InvalidDataError, OverloadedError, StalledError
from gradwire_server.settings import Settings

# A request that takes longer to come, or up to twice as long, counts as slow.
_MOMENT_S = 0.5
# Of a cancelled call grpc first says that its input ends, and only then cancels the handler.
CANCELLATION_S = 0.5
# A reply of fewer bytes goes where the socket's own buffers are.
_LEAST_BYTES = 1 << 16
# What one caller's messages on their way may hold of the budget.
_SHARE = 1 / 4


class Transit:
    """What messages on their way hold, by caller. Used from one event loop only."""

    def __init__(self, admission: Admission, settings: Settings) -> None:
        self._admission = admission
        self._share_bytes = int(admission.max_memory_bytes * _SHARE)
        self._message_bytes = settings.max_message_bytes
        self._timeout_s = settings.stall_timeout_s
        self._held: Counter[Hashable] = Counter()
        self._arriving: dict[asyncio.Task[Any], _Arrival] = {}
        self._looks = False

    async def receive(self, context: Context) -> Any:
        """Return the request of a unary call as it was read, or a Malformed that says why not.

        StalledError where it is not there in time, OverloadedError where it is slow and there is no
        room for it, InvalidDataError where none comes.
        """
        task: Any = asyncio.current_task()
        arrival = self._arriving[task] = _Arrival(context)
        if not self._looks:
            self._looks = True
            task.get_loop().call_later(_MOMENT_S, self._look)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            # A timer for each call would take longer than all the rest here.
            if arrival.refused is None or task.uncancel():
                raise
            return Malformed(arrival.refused)
        finally:
            del self._arriving[task]
            if arrival.caller is not None:
                self._free(arrival.caller, self._message_bytes)
        if message is grpc.aio.EOF:
            await asyncio.sleep(CANCELLATION_S)
            return Malformed(InvalidDataError("message", "none came; a call has one request"))
        return message

    def check(self, context: Context, needed: int) -> None:
        """Raise OverloadedError where messages of its caller leave a call no room for its bytes."""
        held = self._held[caller_of(context)] if self._held else 0
        if held and held + needed > self._share_bytes:
            raise self._admission.full(
                f"messages of this caller hold {held} bytes of memory on their way, "
                f"{self._share_bytes} at most, and this call needs {needed}",
                missing=held + needed - self._share_bytes,
                amount=needed,
            )

    def send(self, context: Context, reply: bytes, *, held: int) -> None:
        """Give back what a call holds of the budget: what its reply needs when that is sent."""
        size = len(reply)
        if _LEAST_BYTES <= size <= held:
            caller = caller_of(context)
            self._held[caller] += size
            held -= size
            sent: Any = partial(self._sent, caller, size)
            context.add_done_callback(sent)
        self._admission.free_memory(held)

    def _look(self) -> None:
        """Look after the requests that are awaited, and come again as long as there are any."""
        self._looks = bool(self._arriving)
        if not self._looks:
            return
        asyncio.get_running_loop().call_later(_MOMENT_S, self._look)
        now = time.monotonic()
        for task, arrival in self._arriving.items():
            if arrival.seen_at is None:
                arrival.seen_at = now
            elif arrival.refused is None:
                self._judge(arrival, now - arrival.seen_at)
                if arrival.refused is not None:
                    task.cancel()

    def _judge(self, arrival: _Arrival, age_s: float) -> None:
        if age_s >= self._timeout_s:
            arrival.refused = StalledError(
                f"the request was not there after {self._timeout_s} s (GRADWIRE_STALL_TIMEOUT_S)",
                timeout_s=self._timeout_s,
            )
        elif arrival.caller is None:
            try:
                self.check(arrival.context, self._message_bytes)
                self._admission.take_memory(self._message_bytes)
            except OverloadedError as error:
                arrival.refused = error
            else:
                arrival.caller = caller_of(arrival.context)
                self._held[arrival.caller] += self._message_bytes

    def _sent(self, caller: Hashable, size: int, _context: object) -> None:
        self._free(caller, size)

    def _free(self, caller: Hashable, size: int) -> None:
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]
        self._admission.free_memory(size)


class _Arrival:
    """A request that is awaited.

    seen_at  when it was first found to be
    caller   whose share it has a part of; None as long as it is not slow
    refused  set where it is awaited no more
    """

    __slots__ = ("caller", "context", "refused", "seen_at")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seen_at: float | None = None
        self.caller: Hashable = None
        self.refused: OverloadedError | StalledError | None = None
