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
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from gradwire_server.config.settings import Settings
from gradwire_server.errors import StalledError
from gradwire_server.rpc.call_context import Context, caller_of, half_close
from gradwire_server.scheduling.admission import Admission

# Time between two looks at incomplete requests. A request that both see counts as slow.
_LOOK_S = 0.5
# A reply of fewer bytes fits into the socket's own buffers.
LEAST_BYTES = 1 << 16
# Parts of the budget, for slow requests and for unsent replies.
_ARRIVING_OF_A_CALLER, _ARRIVING, _LEAVING_OF_A_CALLER = 1 / 4, 1 / 2, 1 / 4


@dataclass(slots=True, eq=False)
class _Arrival:
    """A request that has not arrived whole.

    caller  for which memory is reserved; None while it is not slow
    timer   for the end of a slow request's time
    error   that ends its call, if any
    """

    context: Context
    task: asyncio.Task[Any]
    caller: Hashable | None = None
    timer: asyncio.TimerHandle | None = None
    error: Exception | None = None

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
        self._message_bytes = settings.max_message_bytes
        self._timeout_s = settings.stall_timeout_s
        # One timer for all: a timer for each takes a tenth of a small call's processor time.
        self._looks = False
        self._arrivals: set[_Arrival] = set()
        self._seen: set[_Arrival] = set()
        self._arriving_bytes: Counter[Hashable] = Counter()
        self._leaving_bytes: Counter[Hashable] = Counter()

    async def receive(self, context: Context) -> Any:
        """Return the request of a unary call, or an error instead.

        The request is returned as it was read. The error is StalledError if the request does not
        arrive in time, ServerFullError if it is slow and there is no room for it, InvalidDataError
        if the call has no request, MemoryError if grpc cannot allocate the message.
        """
        task: Any = asyncio.current_task()
        arrival = _Arrival(context, task)
        self._arrivals.add(arrival)
        if not self._looks:
            self._look()
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
            self._arrivals.discard(arrival)
            self._seen.discard(arrival)
            if arrival.timer is not None:
                arrival.timer.cancel()
            if arrival.caller is not None:
                self._free(self._arriving_bytes, arrival.caller, self._message_bytes)
        if message is grpc.aio.EOF:
            return await half_close("message", "none came; a call has one request")
        return message

    def _look(self) -> None:
        for arrival in self._seen:
            self._note_slow(arrival)
        self._seen, self._arrivals = self._arrivals, set()
        self._looks = bool(self._seen)
        if self._looks:
            asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _note_slow(self, arrival: _Arrival) -> None:
        """Reserve memory for a slow request, or end its call."""
        caller, needed = caller_of(arrival.context), self._message_bytes
        own, every = self._arriving_bytes[caller], self._arriving_bytes.total()
        whose = "requests of {} that have not come whole reserve".format
        try:
            self._check_share(whose("this caller"), own, _ARRIVING_OF_A_CALLER, needed)
            self._check_share(whose("all callers"), every, _ARRIVING, needed)
            self._admission.take_memory(needed)
        except Exception as error:  # noqa: BLE001 - the caller gets a status
            arrival.end(error)
            return
        self._arriving_bytes[caller] += needed
        arrival.caller = caller
        stalled = StalledError(
            f"the request was not there after {self._timeout_s} s (GRADWIRE_STALL_TIMEOUT_S)",
            timeout_s=self._timeout_s,
        )
        left_s = self._timeout_s - _LOOK_S
        arrival.timer = arrival.task.get_loop().call_later(left_s, arrival.end, stalled)

    def check(self, context: Context, needed: int) -> None:
        """Raise ServerFullError if there is no room for another reply.

        The caller's unread replies take the room.
        """
        held = self._leaving_bytes[caller_of(context)] if self._leaving_bytes else 0
        whose = "replies that this caller has not read hold"
        self._check_share(whose, held, _LEAVING_OF_A_CALLER, needed)

    def _check_share(self, whose: str, held: int, share: float, needed: int) -> None:
        """Raise ServerFullError if a share of the budget has no room."""
        most = int(self._admission.max_memory_bytes * share)
        if held and held + needed > most:
            raise self._admission.full_of_memory(
                f"{whose} {held} bytes of memory, {most} at most, and this call needs {needed}",
                missing=held + needed - most,
                amount=needed,
            )

    def send(self, context: Context, reply: bytes, *, held: int) -> None:
        """Free the memory of a call, except the reply's bytes.

        These are freed once the reply is sent.
        """
        size = len(reply)
        if LEAST_BYTES <= size <= held:
            caller = caller_of(context)
            self._leaving_bytes[caller] += size
            held -= size
            sent: Any = partial(self._free, self._leaving_bytes, caller, size)
            context.add_done_callback(sent)
        self._admission.free_memory(held)

    def _free(
        self, held: Counter[Hashable], caller: Hashable, size: int, _context: object = None
    ) -> None:
        held[caller] -= size
        if not held[caller]:
            del held[caller]
        self._admission.free_memory(size)
