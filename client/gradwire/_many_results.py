"""evaluate_many of the blocking client: whoever iterates takes items and receives answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from numpy.typing import NDArray

from gradwire._channel import Link
from gradwire._many import Exchange
from gradwire._many_items import QUICK_S, Item, ItemSlot
from gradwire._many_stream import ManyStream
from gradwire._per_process import PerProcess
from gradwire.errors import GradwireError, OverloadedError

T_co = TypeVar("T_co", covariant=True)

# In a process forked off: to finalize a stream would end it for the parent.
_OF_PARENTS: list[ManyStream] = []


class Results(Iterator[T_co]):
    """What `Client.evaluate_many` returns: the results, one after the other.

    next() raises the error of an item in its place; asked again, it goes on with the next item. So
    a for loop ends with the first error, and whoever wants the others calls next(). For one thread
    at a time, in the process that asked for it. Close it, or use it in a with statement, to end
    what is not wanted any more.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self,
        items: Iterable[object],
        exchange: Exchange,
        links: PerProcess[Link],
        *,
        ordered: bool,
        evaluate: Callable[[Item], NDArray[Any]],
    ) -> None:
        self.index = -1
        self._connection = _Connection(exchange, links)
        self._items = iter(items)
        self._exchange = exchange
        self._ordered = ordered
        self._evaluate = evaluate
        self._asked = threading.Lock()

    def __next__(self) -> T_co:
        self._connection.check_process()
        if not self._asked.acquire(blocking=False):
            raise RuntimeError(
                "the next of these results is asked for already, by another thread or by what "
                "makes the items; iterate in one thread at a time"
            )
        try:
            slot = self._outcome()
            if slot is None:
                self._connection.finish()
                raise StopIteration
        finally:
            self._asked.release()
        self.index = slot.index
        if slot.error is not None:
            raise slot.error
        result: Any = slot.result if self._ordered else (slot.index, slot.result)
        return cast("T_co", result)

    def close(self) -> None:
        """Take no more items and end what is under way; next() raises StopIteration.

        A generator that makes the items is the caller's to close.
        """
        self._exchange.close()
        self._connection.hang_up()

    def _outcome(self) -> ItemSlot | None:
        exchange, connection = self._exchange, self._connection
        while True:
            if connection.closed:
                exchange.cancel()
                connection.hang_up()
            connection.take_received()
            slot = exchange.outcome() if connection.receives_ahead else None
            if slot is None:
                self._take_items()
                slot = exchange.outcome()
            if slot is not None or exchange.over:
                return slot
            if exchange.alone and not (exchange.places.crowded and exchange.in_flight):
                self._evaluate_alone(exchange.alone.popleft())
            elif connection.receives_ahead and exchange.wants:
                continue
            elif exchange.in_flight:
                connection.receive()
            elif exchange.due_in_s is not None:
                time.sleep(exchange.due_in_s)

    def _take_items(self) -> None:
        exchange, connection = self._exchange, self._connection
        until = time.monotonic() + QUICK_S
        while exchange.wants:
            try:
                item = next(self._items)
            except StopIteration:
                exchange.end()
            except Exception as error:  # noqa: BLE001 - it is raised behind the items before it
                exchange.end(error)
            else:
                request = exchange.add(item)
                if request is not None:
                    connection.send(request)
            if time.monotonic() > until:
                # Results should not wait until many items are there.
                connection.receive_ahead()
                break
        for request in exchange.due():
            connection.send(request)

    def _evaluate_alone(self, slot: ItemSlot) -> None:
        exchange = self._exchange
        if exchange.places.crowded:
            self._connection.finish()
        exchange.places.begin_alone()
        try:
            exchange.settle(slot, result=self._evaluate(slot.item))
        except OverloadedError as error:
            if exchange.places.kept_alone(error):
                exchange.alone.appendleft(slot)
            else:
                exchange.settle(slot, error=error)
        except Exception as error:  # noqa: BLE001 - it is raised in the item's place
            exchange.settle(slot, error=error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        connection: _Connection | None = getattr(self, "_connection", None)
        if connection is not None:
            connection.hang_up()


class _Connection:
    """The stream there is at the moment, if any, and the thread that watches it.

    receives_ahead  whether answers are received while nobody asks for results, in another thread:
                    that costs a quarter more, and is for items that are slow to come
    """

    def __init__(self, exchange: Exchange, links: PerProcess[Link]) -> None:
        self._exchange = exchange
        self._links = links
        self._link = links.get()
        self._process = os.getpid()
        self._stream: ManyStream | None = None
        self._watch: _Watch | None = None
        self.receives_ahead = False

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._links.closed

    def check_process(self) -> None:
        """Raise RuntimeError in another process than that which asked for results."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"these results belong to process {self._process}, from which this one was forked;"
                " call evaluate_many() here"
            )

    def send(self, request: bytes) -> None:
        """Send a request that is in flight now."""
        if self._stream is None:
            self._connect()
        else:
            self._stream.send(request)

    def receive(self) -> None:
        """Take the next message, on a new stream where the last one broke."""
        if self._stream is None or self._watch is None:
            self._connect()
            return
        self._watch.begin()
        try:
            self._exchange.take(self._stream.receive())
        except GradwireError as error:
            self._recover(self._exchange.stalled() if self._watch.barked else error)
        except BaseException:
            # Such as KeyboardInterrupt: a message may be lost.
            self.hang_up()
            raise
        else:
            self._watch.end()

    def receive_ahead(self) -> None:
        """Receive ahead from now on."""
        self.receives_ahead = True
        if self._stream is not None:
            self._stream.receive_ahead()

    def take_received(self) -> None:
        """Take the messages that have been received ahead."""
        while self._stream is not None and self._stream.has_received:
            self.receive()

    def finish(self) -> None:
        """End the stream after the last answer."""
        if self._stream is not None:
            self._stream.finish()
        self.hang_up()

    def hang_up(self) -> None:
        """End the stream at once."""
        stream, self._stream = self._stream, None
        watch, self._watch = self._watch, None
        if stream is not None and os.getpid() != self._process:
            _OF_PARENTS.append(stream)
        elif stream is not None:
            stream.cancel()
        if watch is not None:
            watch.stop()

    def _connect(self) -> None:
        exchange = self._exchange
        try:
            self._stream = ManyStream(self._link, exchange.begin())
            self._stream.start()
        except GradwireError as error:
            self._recover(error)
            return
        if self.receives_ahead:
            self._stream.receive_ahead()
        self._watch = _Watch(self._stream.cancel, exchange.timeout_s)

    def _recover(self, error: GradwireError) -> None:
        self.hang_up()
        if not self.closed:
            time.sleep(self._exchange.broke(error))


class _Watch:
    """Calls bark() in a thread of its own when something takes too long, since grpc waits forever.

    barked  whether it did
    """

    _LOOKS = 8

    def __init__(self, bark: Callable[[], None], timeout_s: float) -> None:
        self._bark = bark
        self._timeout_s = timeout_s
        self._since: float | None = None
        self._stopped = threading.Event()
        self.barked = False
        threading.Thread(target=self._look, name="gradwire-watch", daemon=True).start()

    def begin(self) -> None:
        """Note that something begins."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has ended."""
        self._since = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _look(self) -> None:
        # Only while something takes its time is it looked at more closely.
        left_s = self._timeout_s / self._LOOKS
        while not self._stopped.wait(left_s):
            since = self._since
            left_s = self._timeout_s / self._LOOKS
            if since is not None:
                left_s = since + self._timeout_s - time.monotonic()
            if left_s <= 0:
                self.barked = True
                self._bark()
                return
