"""Memory budget of unary messages that grpc buffers for slow callers.

By itself grpc waits for the end of a request as long as its connection lasts, and keeps an unread
reply as long. Here a request must arrive within the stall timeout of streams. A slow request
reserves the largest size it may reach: at most a quarter of the memory budget per caller, half of
it for all callers, so that requests that arrive at once find room. A reply holds its bytes until
grpc has sent them, at most a quarter of the budget per caller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import Any

import grpc

from gradwire_server.config.settings import Settings
from gradwire_server.errors import InvalidDataError, StalledError
from gradwire_server.rpc.call_context import CANCELLATION_S, Context, caller_of
from gradwire_server.scheduling.admission import Admission

# A request that is incomplete after this time counts as slow.
_MOMENT_S = 0.5
# Time between two looks at incomplete requests.
_LOOK_S = 0.1
# A reply of fewer bytes fits into the socket's own buffers.
LEAST_BYTES = 1 << 16
# Parts of the budget, for slow requests and for unsent replies.
_ARRIVING_OF_A_CALLER, _ARRIVING, _LEAVING_OF_A_CALLER = 1 / 4, 1 / 2, 1 / 4


class _Arrival:
    """A request that has not arrived whole.

    began      time on the event loop's clock
    caller     for which memory is reserved; None while it is not slow
    stalls_at  when a slow one ends its call
    error      that ends its call, if any
    """

    __slots__ = ("began", "caller", "context", "error", "stalls_at", "task")

    def __init__(self, context: Context, task: asyncio.Task[Any], began: float) -> None:
        self.context, self.task, self.began = context, task, began
        self.caller: Hashable | None = None
        self.stalls_at = 0.0
        self.error: Exception | None = None

    def end(self, error: Exception) -> None:
        """End the call with an error."""
        self.error = error
        self.task.cancel()


class MessageBudget:
    """Memory of slow requests and unsent replies, by caller.

    Used from one event loop only.
    """

    def __init__(self, admission: Admission, settings: Settings) -> None:
        self._admission = admission
        budget = admission.max_memory_bytes
        self._own_arriving_bytes = int(budget * _ARRIVING_OF_A_CALLER)
        self._all_arriving_bytes = int(budget * _ARRIVING)
        self._own_leaving_bytes = int(budget * _LEAVING_OF_A_CALLER)
        self._message_bytes = settings.max_message_bytes
        self._timeout_s = settings.stall_timeout_s
        # The oldest first; one timer looks at them, since a timer for each would take longer.
        self._arrivals: dict[_Arrival, None] = {}
        self._looks = False
        self._arriving_bytes: Counter[Hashable] = Counter()
        self._leaving_bytes: Counter[Hashable] = Counter()

    async def receive(self, context: Context) -> Any:
        """Return the request of a unary call, or an error instead.

        The request is returned as it was read. The error is StalledError if the request does not
        arrive in time, ServerFullError if it is slow and there is no room for it, InvalidDataError
        if the call has no request, MemoryError if grpc cannot allocate the message.
        """
        task: Any = asyncio.current_task()
        loop = task.get_loop()
        arrival = _Arrival(context, task, loop.time())
        self._arrivals[arrival] = None
        if not self._looks:
            self._looks = True
            loop.call_later(_MOMENT_S, self._look, loop)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if arrival.error is None or task.uncancel():
                raise
            return arrival.error
        except MemoryError as error:
            # grpc could not allocate the message; raised outside answer(), it would be UNKNOWN.
            return error
        finally:
            del self._arrivals[arrival]
            if arrival.caller is not None:
                self._free(self._arriving_bytes, arrival.caller, self._message_bytes)
        if message is grpc.aio.EOF:
            await asyncio.sleep(CANCELLATION_S)
            return InvalidDataError("message", "none came; a call has one request")
        return message

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reserve memory for slow requests, or end their calls."""
        now = loop.time()
        for arrival in self._arrivals:
            if now - arrival.began < _MOMENT_S:
                break
            if arrival.error is None:
                self._note_slow(arrival, now)
        self._looks = bool(self._arrivals)
        if self._looks:
            loop.call_later(_LOOK_S, self._look, loop)

    def _note_slow(self, arrival: _Arrival, now: float) -> None:
        if arrival.caller is None:
            try:
                arrival.caller = self._reserve(arrival.context)
            except Exception as error:  # noqa: BLE001 - the caller gets a status
                arrival.end(error)
            # Counted from now: a stopped process must not end calls as soon as it continues.
            arrival.stalls_at = now + self._timeout_s - _MOMENT_S
        elif now >= arrival.stalls_at:
            arrival.end(
                StalledError(
                    f"the request was not there after {self._timeout_s} s "
                    "(GRADWIRE_STALL_TIMEOUT_S)",
                    timeout_s=self._timeout_s,
                )
            )

    def check(self, context: Context, needed: int) -> None:
        """Raise ServerFullError if there is no room for another reply.

        The caller's unread replies take the room.
        """
        held = self._leaving_bytes[caller_of(context)] if self._leaving_bytes else 0
        whose = "replies that this caller has not read hold"
        self._check_share(whose, held, self._own_leaving_bytes, needed)

    def _check_share(self, whose: str, held: int, most: int, needed: int) -> None:
        """Raise ServerFullError if a share has no room for further bytes."""
        if held and held + needed > most:
            raise self._admission.full_of_memory(
                f"{whose} {held} bytes of memory, {most} at most, and this call needs {needed}",
                missing=held + needed - most,
                amount=needed,
            )

    def _reserve(self, context: Context) -> Hashable:
        """Reserve memory for a slow request, and return its caller.

        Raises ServerFullError if other requests have reserved too much, or there is no room.
        """
        caller, needed = caller_of(context), self._message_bytes
        own, every = self._arriving_bytes[caller], self._arriving_bytes.total()
        whose = "requests of {} that have not come whole reserve".format
        self._check_share(whose("this caller"), own, self._own_arriving_bytes, needed)
        self._check_share(whose("all callers"), every, self._all_arriving_bytes, needed)
        self._admission.take_memory(needed)
        self._arriving_bytes[caller] += needed
        return caller

    def send(self, context: Context, reply: bytes, *, held: int) -> None:
        """Free the memory of a call, except the reply's bytes.

        These are freed once the reply is sent.
        """
        size = len(reply)
        if LEAST_BYTES <= size <= held:
            caller = caller_of(context)
            self._leaving_bytes[caller] += size
            held -= size
            sent: Any = partial(self._sent, caller, size)
            context.add_done_callback(sent)
        self._admission.free_memory(held)

    def _sent(self, caller: Hashable, size: int, _context: object) -> None:
        self._free(self._leaving_bytes, caller, size)

    def _free(self, held: Counter[Hashable], caller: Hashable, size: int) -> None:
        held[caller] -= size
        if not held[caller]:
            del held[caller]
        self._admission.free_memory(size)
