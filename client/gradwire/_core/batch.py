"""State of one evaluate_many: its items, their order, retries and outcomes.

An item becomes a slot, which is open from the taking of the item until its outcome is handed over;
the number of open slots is bounded. Without an outcome a slot is in flight or waits to be sent
again. Evaluations are pure: requests in flight on a broken stream are repeated on the next one, as
bytes that were copied when the item was taken, so that its array may be reused at once.
"""

from __future__ import annotations

import copy
import random
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gradwire import v1
from gradwire._core.options import Options
from gradwire._core.retries import RetryBudget, Tries, is_retryable
from gradwire._wire.arguments import Item, as_item, check_max_in_flight, check_timeout
from gradwire._wire.framing import many_request_frame, read_many_request, read_many_result
from gradwire._wire.requests import RequestTemplate, find_template
from gradwire._wire.statuses import from_in_band
from gradwire.errors import (
    CallCancelledError,
    DeadlineExceededError,
    GradwireError,
    OverloadedError,
    ServerError,
    UnsupportedOperatorError,
)

# Seconds that taking items may hold up results that could be handed over.
QUICK_S = 0.05
# Reasons for which a stream of its own may succeed.
_TOO_LARGE = frozenset({"USE_STREAM", "LAYOUT_NOT_STREAMABLE"})
_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class PendingItem:
    """One item and what becomes of it.

    index     its place in the iterable
    name      of its request
    template  of its evaluation
    out       where the result is stored; None where an array is made for it
    frame     the request; empty where it does not go by the common stream
    alone     the item where it goes by a call of its own
    settled   whether there is an outcome: an error, else the result
    """

    index: int
    name: bytes
    template: RequestTemplate | None = None
    out: NDArray[Any] | None = None
    frame: bytes = b""
    alone: Item | None = None
    settled: bool = False
    result: NDArray[Any] | None = None
    error: BaseException | None = None
    tries: Tries | None = None

    @property
    def item(self) -> Item:
        """The item of a slot that goes alone."""
        if self.alone is None:
            raise AssertionError("it goes by the common stream")
        return self.alone


class StreamContention:
    """Whether the stream of evaluate_many and its separate calls compete for the server's streams.

    A server may allow so few streams that one takes the place of the other. A refusal for that
    reason costs no try: the call is repeated after the other one has ended.

    crowded  whether separate calls wait for the end of the stream
    """

    def __init__(self) -> None:
        self.crowded = False
        self._beside = False

    def begin_stream(self) -> None:
        """Note that a stream begins."""
        self._beside = False

    def begin_alone(self) -> None:
        """Note that a separate call begins, beside the stream unless crowded."""
        self._beside = self._beside or not self.crowded

    def kept_alone(self, error: GradwireError) -> bool:
        """Return whether the stream may have caused the refusal of a separate call."""
        kept = isinstance(error, OverloadedError) and not self.crowded
        self.crowded = self.crowded or kept
        return kept

    def kept_stream(self, error: GradwireError) -> bool:
        """Return whether a separate call may have caused the refusal of the stream."""
        kept = isinstance(error, OverloadedError) and self._beside
        self._beside = False
        self.crowded = self.crowded or kept
        return kept


class ItemBatch:
    """All slots of one evaluate_many. Used by one thread at a time.

    alone      slots that the client evaluates by separate calls, then settles
    places     whether those compete with the stream
    timeout_s  seconds that a stream may go without an answer
    """

    def __init__(
        self,
        *,
        options: Options,
        budget: RetryBudget,
        ordered: bool,
        max_in_flight: int,
        timeout_s: float | None,
    ) -> None:
        self.alone: deque[PendingItem] = deque()
        self.places = StreamContention()
        self.timeout_s = check_timeout(timeout_s) or options.timeout_s
        self._options = options
        self._budget = budget
        self._ordered = ordered
        self._most = check_max_in_flight(max_in_flight)
        # A few items are taken at once, since to wake the sender costs more than to take one.
        self._few = max_in_flight - max(1, max_in_flight // 4)
        self._filling = True
        self._ended = self._all_alone = self._progressed = False
        self._prefix = f"{uuid4().hex[:12]}-"
        self._taken = self._open = self._open_alone = 0
        # Ordered: every open slot. Otherwise: those that are settled.
        self._queue: deque[PendingItem] = deque()
        self._in_flight: dict[bytes, PendingItem] = {}
        self._later: list[tuple[float, PendingItem]] = []
        self._tries = options.tries(budget)

    @property
    def wants(self) -> bool:
        """Whether another item may be taken."""
        if self._ended or self._open_alone:
            # Of large tensors one is enough to hold.
            return False
        self._filling = self._open < self._most if self._filling else self._open <= self._few
        return self._filling

    @property
    def in_flight(self) -> int:
        """How many items wait for their answers."""
        return len(self._in_flight)

    @property
    def over(self) -> bool:
        """Whether every outcome has been handed over."""
        return self._ended and not self._open

    def add(self, item: object) -> bytes | None:
        """Take an item; return its request for the common stream, unless it goes another way."""
        slot = self._slot()
        try:
            given = as_item(item)
            template, array = find_template(
                given.op, given.array, output_shape=given.output_shape, out=given.out
            )
            slot.template, slot.out = template, given.out
            large = template.bulk_bytes > self._options.stream_threshold_bytes
            if large or self._all_alone:
                self._leave_alone(slot, given)
                return None
            slot.frame = many_request_frame(slot.name, template.header, template.data(array))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            self.settle(slot, error=error)
            return None
        except BaseException:
            # Such as KeyboardInterrupt: without an outcome the caller would wait for ever.
            self.settle(slot, error=CallCancelledError("interrupted before the item was sent"))
            raise
        self._in_flight[slot.name] = slot
        return slot.frame

    def end(self, error: BaseException | None = None) -> None:
        """Note that there are no more items, for an error where there is one."""
        if error is not None and not self._ended:
            self.settle(self._slot(), error=error)
        self._ended = True

    def cancel(self) -> None:
        """Take no more items, and end with CallCancelledError those that have no outcome."""
        error = CallCancelledError("the client was closed")
        if not self._ended:
            # The caller must learn that there may have been more items.
            self.end(copy.copy(error))
        self._in_flight |= {slot.name: slot for _, slot in self._later}
        self._in_flight |= {slot.name: slot for slot in self.alone}
        self._later.clear()
        self.alone.clear()
        self.give_up(error)

    def close(self) -> None:
        """Take no more items, and forget those that are open."""
        self._ended = True
        self._open = 0
        self._queue.clear()
        self._in_flight.clear()
        self._later.clear()
        self.alone.clear()

    def begin(self) -> list[bytes]:
        """Return the first requests of a new stream: all that are in flight."""
        self._progressed = False
        self.places.begin_stream()
        return [slot.frame for slot in self._in_flight.values()]

    def due(self) -> list[bytes]:
        """Return the requests to send again that have waited long enough."""
        if not self._later:
            return []
        now = time.monotonic()
        ready = [slot for at, slot in self._later if at <= now]
        self._later = [(at, slot) for at, slot in self._later if at > now]
        self._in_flight |= {slot.name: slot for slot in ready}
        return [slot.frame for slot in ready]

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a request is to be sent again; None where none is."""
        if not self._later:
            return None
        return max(0.0, min(at for at, _ in self._later) - time.monotonic())

    def take(self, message: bytes) -> None:
        """Take a message of the stream; raise the error that ends it where it is one."""
        parts = read_many_result(message)
        if parts is not None:
            name, header, data = parts
            self._receive(self._answered(name), header, data)
            return
        name, outcome = parse_answer(message)
        if not isinstance(outcome, GradwireError):
            self._receive(self._answered(name), *outcome)
        elif name:
            self._refuse(self._answered(name), outcome)
        else:
            raise outcome

    def outcome(self) -> PendingItem | None:
        """Hand over the next outcome, if it is there."""
        if not self._queue or not self._queue[0].settled:
            return None
        slot = self._queue.popleft()
        self._open -= 1
        self._open_alone -= slot.alone is not None
        return slot

    def settle(
        self,
        slot: PendingItem,
        *,
        result: NDArray[Any] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Note the outcome of a slot."""
        slot.result, slot.error, slot.settled, slot.frame = result, error, True, b""
        if error is not None:
            error.add_note(f"item {slot.index} of evaluate_many")
        if not self._ordered:
            self._queue.append(slot)

    def broke(self, error: GradwireError) -> float:
        """Take the end of a stream; return the seconds to wait before the next one.

        Where there is no next one, the error is the outcome of all that was in flight.
        """
        if self.places.kept_stream(error) or not self._in_flight:
            return 0.0
        if isinstance(error, UnsupportedOperatorError) and not error.reason:
            # The server knows no EvaluateMany.
            self._all_alone = True
            for slot in self._drain():
                self._leave_alone(slot)
            return 0.0
        # A caller that was slow to read is no fault of the request's.
        pause_s = None
        if is_retryable(error, streamed=True) or error.reason == "STALLED":
            pause_s = self._pause_s(self._tries, error, progressed=self._progressed)
        if pause_s is None:
            self.give_up(error)
        return pause_s or 0.0

    @property
    def evaluates_alone(self) -> bool:
        """Whether a separate call is to be made now."""
        return bool(self.alone) and not (self.places.crowded and self._in_flight)

    def begin_alone(self) -> PendingItem:
        """Return the slot of the next separate call, which begins."""
        self.places.begin_alone()
        return self.alone.popleft()

    def end_alone(
        self,
        slot: PendingItem,
        *,
        result: NDArray[Any] | None = None,
        error: Exception | None = None,
    ) -> None:
        """Take the outcome of a separate call, which is repeated if the stream kept it out."""
        if isinstance(error, OverloadedError) and self.places.kept_alone(error):
            self.alone.appendleft(slot)
        else:
            self.settle(slot, result=result, error=error)

    def stalled(self) -> DeadlineExceededError:
        """Return the error of a stream on which no answer came for too long."""
        return DeadlineExceededError(
            f"no answer for {self.timeout_s} s, while {self.in_flight} items were in flight"
        )

    def give_up(self, error: GradwireError) -> None:
        """Make an error the outcome of all that is in flight."""
        for slot in self._drain():
            self.settle(slot, error=copy.copy(error))

    def _slot(self) -> PendingItem:
        slot = PendingItem(self._taken, b"%b%d" % (self._prefix.encode(), self._taken))
        self._taken += 1
        self._open += 1
        if self._ordered:
            self._queue.append(slot)
        return slot

    def _drain(self) -> list[PendingItem]:
        slots = list(self._in_flight.values())
        self._in_flight.clear()
        return slots

    def _leave_alone(self, slot: PendingItem, item: Item | None = None) -> None:
        """Have a slot evaluated by a call of its own."""
        template = slot.template
        if item is None and template is not None:
            parts = read_many_request(slot.frame)
            array = template.array(parts[2] if parts else _NOTHING)
            output = template.output
            shape = None if output is None else tuple(output.sizes)
            item = Item(template.op, array, shape, slot.out)
        slot.alone, slot.frame = item, b""
        self._open_alone += 1
        self.alone.append(slot)

    def _answered(self, name: bytes) -> PendingItem:
        slot = self._in_flight.pop(name, None)
        if slot is None:
            raise ServerError(f"the server answered {name.decode()}, which was not asked")
        self._progressed = True
        self._budget.succeed()
        return slot

    def _receive(self, slot: PendingItem, header: bytes, data: memoryview) -> None:
        if slot.template is None:
            raise AssertionError("a slot in flight has a template")
        try:
            self.settle(slot, result=slot.template.result(header, data, out=slot.out))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            self.settle(slot, error=error)

    def _refuse(self, slot: PendingItem, error: GradwireError) -> None:
        if error.reason in _TOO_LARGE:
            self._leave_alone(slot)
            return
        pause_s = None
        if is_retryable(error, streamed=False):
            slot.tries = slot.tries or self._options.tries(self._budget)
            pause_s = self._pause_s(slot.tries, error, progressed=False)
        if pause_s is None:
            self.settle(slot, error=error)
        else:
            self._later.append((time.monotonic() + pause_s, slot))

    def _pause_s(self, tries: Tries, error: GradwireError, *, progressed: bool) -> float | None:
        """Return the seconds to wait before the next try; None where there is none."""
        draw = random.random()  # noqa: S311 - jitter
        try:
            return tries.pause_s(error, progressed=progressed, left_s=self.timeout_s, draw=draw)
        except GradwireError:
            return None


def parse_answer(message: bytes) -> tuple[bytes, tuple[bytes, memoryview] | GradwireError]:
    """Read an answer of any kind: its name, and header and data of the result, or the error.

    The name is empty where the error ends the stream. Raises ServerError where it is none of them.
    """
    try:
        response = v1.EvaluateManyResponse.FromString(message)
    except DecodeError as error:
        raise ServerError(f"the server sent {len(message)} bytes that are no message") from error
    name = response.request_id
    match response.WhichOneof("outcome"):
        case "result":
            header = v1.EvaluateResponse(output=response.result.output)
            data = memoryview(response.result.data)
            return name.encode(), (header.SerializeToString(), data)
        case "error":
            return name.encode(), from_in_band(response.error, request_id=name or None)
        case None:
            raise ServerError(f"the server answered {name or 'nothing'} with nothing")


async def each(items: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    """Yield the items of a synchronous or asynchronous iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
