"""State of one evaluate_many: its items, their order, retries and outcomes.

An item is open from its taking until its outcome is handed over; the number of open items is
bounded. Without an outcome it is in flight, waits to be sent again, or waits for a call of its own.
Evaluations are pure: requests in flight on a broken stream are repeated on the next one, as bytes
that were copied when the item was taken, so that its array may be reused at once.
"""

from __future__ import annotations

import copy
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from gradwire import v1
from gradwire._core.options import Options
from gradwire._core.retries import Tries, is_retryable
from gradwire._wire.framing import many_request_frame, parsed, read_many_result
from gradwire._wire.requests import (
    RequestTemplate,
    as_item,
    check_max_in_flight,
    check_timeout,
    find_template,
)
from gradwire._wire.statuses import from_in_band
from gradwire.errors import (
    CallCancelledError,
    DataLossError,
    DeadlineExceededError,
    GradwireError,
    ServerError,
)
from gradwire.tensors import Array

# Reasons after which an item may succeed on a stream of its own.
_TOO_LARGE = frozenset({"USE_STREAM", "LAYOUT_NOT_STREAMABLE"})


@dataclass(slots=True, eq=False)
class PendingItem:
    """One item and its outcome.

    index     its place in the iterable
    name      name of its request
    template  of its evaluation, once it has been checked
    out       where the result is stored; None where an array is made for it
    frame     the request; empty where it does not go by the stream
    checksum  of the request; None where it has none
    settled   whether there is an outcome: an error, else the result
    """

    index: int
    name: bytes
    template: RequestTemplate = field(init=False)
    out: Array | None = None
    frame: bytes = b""
    checksum: int | None = None
    settled: bool = False
    result: Array | None = None
    error: BaseException | None = None
    tries: Tries | None = None


class ItemBatch:
    """All items of one evaluate_many.

    One thread adds items and takes outcomes: it calls `wants`, `add`, `end`, `outcome`, `over`,
    `cancel` and `close`. The same thread or a second one does the rest; both use `lock`.

    ordered     whether outcomes come in the order of their items
    timeout_s   of each call of its own; None for the client's
    lock        held while items come into flight, until they are sent
    alone       items that need calls of their own, with their inputs
    patience_s  seconds that a stream may go without an answer
    """

    def __init__(
        self, options: Options, *, ordered: bool, max_in_flight: int, timeout_s: float | None
    ) -> None:
        self.alone: deque[tuple[PendingItem, Array]] = deque()
        # Garbage collection may run a finalizer that calls within its own locked sections.
        self.lock = threading.RLock()
        self.timeout_s = check_timeout(timeout_s)
        self.patience_s = timeout_s or options.timeout_s
        self._options = options
        self.ordered = ordered
        self._most = check_max_in_flight(max_in_flight)
        # Several items are taken at once: waking the sender costs more than taking one.
        self._few = max_in_flight - max(1, max_in_flight // 4)
        self._filling = True
        self._ended = self._progressed = False
        self._prefix = f"{uuid4().hex[:12]}-"
        self._taken = self._open = 0
        self._open_alone: set[int] = set()
        # All open items if ordered, otherwise the settled ones.
        self._queue: deque[PendingItem] = deque()
        self._in_flight: dict[bytes, PendingItem] = {}
        self._later: list[tuple[float, int, PendingItem]] = []
        self._tries = options.tries()

    @property
    def wants(self) -> bool:
        """Whether there is room to take another item."""
        if self._ended or self._open_alone:
            # One large tensor at a time is enough to hold.
            return False
        self._filling = self._open < self._most if self._filling else self._open <= self._few
        return self._filling

    @property
    def in_flight(self) -> int:
        """Number of items that wait for their answers."""
        return len(self._in_flight)

    @property
    def over(self) -> bool:
        """Whether every outcome has been handed over."""
        return self._ended and not self._open

    def add(self, item: object, send: Callable[[bytes], object]) -> None:
        """Take an item; send its request unless it needs its own call."""
        pending = self._new_item()
        try:
            given = as_item(item)
            template, array = find_template(
                given.op, given.array, output_shape=given.output_shape, out=given.out
            )
            pending.template, pending.out = template, given.out
            if template.bulk_bytes > self._options.stream_threshold_bytes:
                self._leave_alone(pending, array)
                return
            self._encode(pending, template.data(array))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            self.settle(pending, error=error)
            return
        except BaseException:
            # Such as KeyboardInterrupt: without an outcome the caller would wait for ever.
            self.settle(pending, error=CallCancelledError("interrupted before the item was sent"))
            raise
        with self.lock:
            self._in_flight[pending.name] = pending
            send(pending.frame)

    def end(self, error: BaseException | None = None) -> None:
        """Note the end of the items, and its error if any."""
        if error is not None and not self._ended:
            self.settle(self._new_item(), error=error)
        self._ended = True

    def cancel(self) -> None:
        """Take no more items; fail open ones with CallCancelledError."""
        error = CallCancelledError("the client was closed")
        if not self._ended:
            # The caller must learn that there may have been more items.
            self.end(copy.copy(error))
        with self.lock:
            waiting = [*(pending for *_, pending in self._later), *(one for one, _ in self.alone)]
            self._in_flight |= {pending.name: pending for pending in waiting}
            self._later.clear()
            self.alone.clear()
            self.give_up(error)

    def close(self) -> None:
        """Take no more items, and forget the open ones."""
        self._ended = True
        self._open = 0
        with self.lock:
            for held in (self._queue, self._in_flight, self._later, self.alone):
                held.clear()

    def begin(self) -> list[bytes]:
        """Return the first requests of a new stream: all in flight.

        The caller holds the lock.
        """
        self._progressed = False
        return [pending.frame for pending in self._in_flight.values()]

    def send_due(self, send: Callable[[bytes], object]) -> None:
        """Resend the requests whose pause is over."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            _, _, pending = heapq.heappop(self._later)
            with self.lock:
                self._in_flight[pending.name] = pending
                send(pending.frame)

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the next request is resent; None without one."""
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def take(self, message: bytes) -> None:
        """Take a message of the stream; raise an error that ends it."""
        found = read_many_result(message, self._checksum_of)
        if found is not None:
            (name, header, data), checksum = found
        else:
            checksum = None
            name, outcome = parse_answer(message)
            if isinstance(outcome, GradwireError):
                if not name:
                    raise outcome
                self._refuse(self._answered(name), outcome)
                return
            header, data = outcome
        pending = self._answered(name, checked=checksum is not None)
        try:
            self.settle(pending, result=pending.template.result(header, data, out=pending.out))
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            self.settle(pending, error=error)

    def outcome(self) -> PendingItem | None:
        """Return the next outcome, or None if there is none yet."""
        if not self._queue or not self._queue[0].settled:
            return None
        pending = self._queue.popleft()
        self._open -= 1
        self._open_alone.discard(pending.index)
        return pending

    def settle(
        self,
        pending: PendingItem,
        *,
        result: Array | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Note the outcome of an item."""
        if error is not None:
            error.add_note(f"item {pending.index} of evaluate_many")
        pending.frame, pending.result, pending.error = b"", result, error
        pending.settled = True
        if not self.ordered:
            self._queue.append(pending)

    def broke(self, error: GradwireError) -> float:
        """Take the end of a stream; return the seconds before the next.

        Raises the error if no stream follows.
        """
        if not self._in_flight:
            return 0.0
        sent = list(self._in_flight.values())
        error.checked = any(pending.checksum is not None for pending in sent)
        if self._options.refused_checksum(error):
            for pending in sent:
                self._encode(pending, _data_of(pending))
            return 0.0
        # A caller that was slow to read is no fault of the request's.
        if is_retryable(error, streamed=True) or error.reason == "STALLED":
            return self._tries.pause_s(error, progressed=self._progressed, left_s=self.patience_s)
        raise error

    @property
    def busy(self) -> bool:
        """Whether an item without an outcome has been taken."""
        return bool(self._in_flight or self.alone or self._later)

    def stalled(self) -> DeadlineExceededError:
        """Return the error of a stream whose answers did not come."""
        return DeadlineExceededError(
            f"no answer for {self.patience_s} s, while {self.in_flight} items were in flight"
        )

    def give_up(self, error: GradwireError) -> None:
        """Make an error the outcome of all items in flight."""
        with self.lock:
            failed = list(self._in_flight.values())
            self._in_flight.clear()
        for pending in failed:
            self.settle(pending, error=copy.copy(error))

    def _new_item(self) -> PendingItem:
        pending = PendingItem(self._taken, b"%b%d" % (self._prefix.encode(), self._taken))
        self._taken += 1
        self._open += 1
        if self.ordered:
            self._queue.append(pending)
        return pending

    def _leave_alone(self, pending: PendingItem, array: Array) -> None:
        """Have an item evaluated by a call of its own."""
        pending.frame = b""
        self._open_alone.add(pending.index)
        self.alone.append((pending, array))

    def _encode(self, pending: PendingItem, data: memoryview) -> None:
        pending.frame, pending.checksum = many_request_frame(
            pending.name,
            pending.template.header,
            data,
            0 if self._options.sends_checksums else None,
        )

    def _checksum_of(self, name: bytes) -> int | None:
        """Return the checksum of the request with a name; None without one."""
        pending = self._in_flight.get(name)
        return None if pending is None else pending.checksum

    def _answered(self, name: bytes, *, checked: bool = True) -> PendingItem:
        """Return the item with a name, which is no more in flight.

        checked  whether its answer need not have a checksum, or has the right one
        """
        pending = self._in_flight.get(name)
        if pending is None:
            raise ServerError(f"the server answered {name.decode()}, which was not asked")
        if pending.checksum is not None and not checked:
            raise DataLossError("a result came without its checksum")
        del self._in_flight[name]
        self._progressed = True
        self._options.budget.succeed()
        return pending

    def _refuse(self, pending: PendingItem, error: GradwireError) -> None:
        error.checked = pending.checksum is not None
        if error.reason in _TOO_LARGE:
            self._leave_alone(pending, pending.template.array(_data_of(pending)))
            return
        pause_s = 0.0
        try:
            if self._options.refused_checksum(error):
                self._encode(pending, _data_of(pending))
            elif is_retryable(error, streamed=False):
                pending.tries = pending.tries or self._options.tries()
                pause_s = pending.tries.pause_s(error, left_s=self.patience_s)
            else:
                raise error
        except GradwireError as last:
            self.settle(pending, error=last)
        else:
            heapq.heappush(self._later, (time.monotonic() + pause_s, pending.index, pending))


def _data_of(pending: PendingItem) -> memoryview:
    """Return the data of an item's request, its last bytes."""
    return memoryview(pending.frame)[len(pending.frame) - pending.template.input_bytes :]


def parse_answer(message: bytes) -> tuple[bytes, tuple[bytes, memoryview] | GradwireError]:
    """Return the name in an answer, and its result or error.

    A result is its header and data. The name is empty if the error ends the stream. Raises
    ServerError for an answer that is neither result nor error.
    """
    response = parsed(v1.EvaluateManyResponse, message)
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
