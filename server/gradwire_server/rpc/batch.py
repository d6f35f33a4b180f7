"""The EvaluateMany RPC: many small evaluations on one stream.

One task reads, one computes and writes; large requests run in threads.

Handling a message costs many times what computing its few numbers does. So requests that differ
only in their data are decoded once, and requests that arrive while earlier results are written are
computed together. No request waits for one that has not arrived.

A request is in flight until its result is written. The server reads a bounded number of requests,
each of which holds the memory it needs; the others wait in the transport, then at the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import grpc
import numpy as np

from gradwire import v1
from gradwire._wire.framing import CheckedParts, Parts, many_result_frame, read_many_request
from gradwire_server.engine import Prepared, together
from gradwire_server.errors import InvalidDataError, StartingError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import Context
from gradwire_server.rpc.codec import Bytes, NoMessageError
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import failure
from gradwire_server.rpc.streaming import ServedStream
from gradwire_server.scheduling.admission import StreamMemory


@dataclass(frozen=True, slots=True, eq=False)
class BatchItem:
    """A request in flight.

    name  request_id
    data  bytes of the input
    checksum  of the request; None if it has none
    """

    name: bytes
    prepared: Prepared
    data: memoryview
    checksum: int | None


def read_item(message: bytes) -> CheckedParts:
    """Return request_id, header, data and checksum of a message.

    Raises InvalidDataError or UnknownFieldError if the message holds no request, or a request
    without a valid request_id, to which no result could be matched, DataLossError if its checksum
    does not match.
    """
    parts, checksum = codec.read_framed(read_many_request, message) or (_parse(message), None)
    name = parts[0]
    if not 1 <= len(name) <= codec.MAX_REQUEST_ID:
        raise InvalidDataError(
            "evaluation.request_id",
            f"{len(name)} bytes; answers are found by it: give each request another one, of 1 to "
            f"{codec.MAX_REQUEST_ID}",
        )
    return parts, checksum


def equal_requests(items: Sequence[BatchItem]) -> Iterator[list[BatchItem]]:
    """Group the items that can be computed together.

    Groups are in the order of their first items.
    """
    groups: dict[Prepared, list[BatchItem]] = {}
    for item in items:
        groups.setdefault(item.prepared, []).append(item)
    for prepared, group in groups.items():
        most = max(1, prepared.most_at_once)
        for first in range(0, len(group), most):
            yield group[first : first + most]


def _parse(message: bytes) -> Parts:
    """Parse a message whose encoding differs from the usual one."""
    fields = {v1.EvaluateManyRequest.EVALUATION_FIELD_NUMBER: codec.DATA}
    request = codec.parse(v1.EvaluateManyRequest, message, fields)
    codec.refuse_unknown_fields(request)
    if not request.HasField("evaluation"):
        raise InvalidDataError("evaluation", "not set; every message holds one")
    return codec.parts_of(request.evaluation)


_log = logging.getLogger("gradwire_server")

# Event loop iterations left to the reader, some microseconds each. Measured: with three, the server
# computes about eight times as many requests at once and answers a third more per second.
_TURNS = 3


class ManyStream(ServedStream):
    """One stream of EvaluateMany, from its first request to its last result."""

    METHOD = "EvaluateMany"
    RESPONSE = v1.EvaluateManyResponse
    RESUME = "send what is unanswered to another one"

    def __init__(self, service: ServiceContext, context: Context) -> None:
        super().__init__(service, context)
        # Requests that wait for a thread, and the tasks of busy threads.
        self._large: list[BatchItem] = []
        self._threads: set[asyncio.Task[None]] = set()
        # request_ids in use until their results are written.
        self._names: set[bytes] = set()
        self._in_flight = 0
        self._memory = StreamMemory(service.admission)
        self._arrived: list[BatchItem] = []
        # request_ids, messages, and bytes of the memory budget that the requests hold.
        self._answers: deque[tuple[bytes, bytes, int]] = deque()
        # _news is set when a request or a result arrives, _room when a result was written.
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._input_ended = False
        self._call.facts |= {"items": 0, "items_failed": 0}

    def _stop(self) -> None:
        self._news.set()
        self._room.set()

    async def _close(self, *others: asyncio.Task[None]) -> None:
        try:
            # If the caller disconnects only now, grpc cancels this too.
            await super()._close(*self._threads, *others)
        finally:
            self._memory.free(self._memory.nbytes)

    async def _read(self) -> None:
        most = self._service.settings.max_in_flight
        with self._call.phases.spending("receive"):
            while (message := await self._context.read()) is not grpc.aio.EOF:
                self._progress = self._clock()
                if self._failed:
                    continue
                await self._take(message)
                while self._in_flight >= most and not self._failed:
                    await self._wait_for_room()
        self._input_ended = True
        self._news.set()

    async def _take(self, message: bytes) -> None:
        (name, header, data), checksum = read_item(message)
        if name in self._names:
            raise InvalidDataError(
                "evaluation.request_id", "in use; a request may have it when this one is answered"
            )
        self._names.add(name)
        self._in_flight += 1
        self._call.facts["items"] += 1
        self._call.received_bytes += len(data)
        try:
            codec.read_request_id(name.decode())
            prepared = await self._service.prepared(header, self._call, method=self.METHOD)
            codec.check_data_length(len(data), prepared.request)
            await self._admit(prepared.message_bytes)
        except (NoMessageError, StartingError):
            raise
        except Exception as error:  # noqa: BLE001 - any error is this request's alone
            self._refuse(name, error)
        else:
            self._arrived.append(BatchItem(name, prepared, data, checksum))
            self._news.set()

    async def _admit(self, needed: int) -> None:
        """Take memory from the budget.

        Waits if other requests of this stream hold it.
        """
        while self._memory.must_wait(needed) and not self._failed:
            await self._wait_for_room()
        self._memory.take(needed)

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def _write(self) -> None:
        while not self._failed:
            self._news.clear()
            if self._arrived:
                # Let the reader take messages that have arrived: one per event loop iteration.
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            arrived, self._arrived = self._arrived, []
            for items in equal_requests(arrived):
                await self._compute_here(items)
            self._start_threads()
            await self._write_answers()
            if self._input_ended and not self._in_flight:
                return
            if not (self._arrived or self._answers):
                await self._news.wait()

    def _start_threads(self) -> None:
        """Start free threads, each on a group of equal requests.

        A group holds all requests equal to the longest waiting one.
        """
        while self._large and self._busy < self._service.settings.threads:
            items = next(equal_requests(self._large))
            started = set(items)
            self._large = [each for each in self._large if each not in started]
            self._busy += 1
            task = asyncio.ensure_future(self._compute_in_thread(items))
            self._threads.add(task)
            task.add_done_callback(self._threads.discard)

    async def _compute_in_thread(self, items: Sequence[BatchItem]) -> None:
        try:
            await self._conclude(items, self._compute_in_turn(items))
        finally:
            self._busy -= 1

    async def _compute_in_turn(self, items: Sequence[BatchItem]) -> Bytes:
        """Compute a group in a thread, in its turn.

        An item may have several steps.
        """
        service, call, prepared = self._service, self._call, items[0].prepared
        # The server limits how many a caller sends: they wait, and are never refused.
        if prepared.most_at_once:
            claim = call.claim(len(items) * prepared.work, paced=True)
            with service.admission.turns(claim) as turns:
                work = partial(together, prepared, [each.data for each in items], service.backend)
                return await service.in_turn(call.phases, turns, work)
        # Kernels need aligned data; in the message it may lie at any offset.
        data = np.frombuffer(bytes(items[0].data), np.uint8)
        result = np.empty((1, prepared.output.wire_bytes), np.uint8)
        await service.compute(prepared, data, result[0], call, paced=True)
        return result

    async def _compute_here(self, items: Sequence[BatchItem]) -> None:
        """Compute equal items if they are short.

        Some are computed in each event loop iteration.
        """
        inline, prepared = self._service.inline, items[0].prepared
        while items and not self._failed:
            if not prepared.most_at_once or not inline.is_short(prepared):
                self._large += items
                return
            most = inline.most(prepared)
            now, items = items[:most], items[most:]
            if now:
                await self._conclude(now, self._compute_inline(now))
            # Yield to other tasks before the next items.
            await (self._write_answers() if now else asyncio.sleep(0))

    async def _compute_inline(self, items: Sequence[BatchItem]) -> Bytes:
        data, service = [each.data for each in items], self._service
        work = partial(together, items[0].prepared, data, service.backend)
        return self._call.compute_inline(work, service.inline)

    async def _conclude(self, items: Sequence[BatchItem], computing: Awaitable[Bytes]) -> None:
        try:
            results = await computing
        except Exception as error:  # noqa: BLE001 - the callers of these requests get it
            for each in items:
                self._refuse(each.name, error, held=each.prepared.message_bytes)
        else:
            self._finish(items, results)

    def _finish(self, items: Sequence[BatchItem], results: Bytes) -> None:
        request = items[0].prepared.request
        operator, dtype = request.operator, request.input.dtype
        self._call.observer.items(
            self._call, "OK", operator=operator, dtype=dtype, count=len(items)
        )
        self._call.sent_bytes += results.size
        length = results.shape[1]
        data = results.reshape(-1).data
        for number, each in enumerate(items):
            one = data[number * length : (number + 1) * length]
            header = each.prepared.response_header
            frame = many_result_frame(each.name, header, one, each.checksum)
            self._answers.append((each.name, frame, each.prepared.message_bytes))
        self._news.set()

    def _refuse(self, name: bytes, error: Exception, *, held: int = 0) -> None:
        """Answer one request with an error."""
        facts = {"request_id": name.decode(), "traceparent": self._call.traceparent}
        failed = failure(error).within(**facts)
        if failed.status == "INTERNAL":
            _log.error("item", extra={"facts": facts}, exc_info=error)
        self._call.observer.items(self._call, failed.status, failed=failed)
        response = v1.EvaluateManyResponse(request_id=name.decode(), error=failed.in_band())
        self._answers.append((name, response.SerializeToString(), held))
        self._call.facts["items_failed"] += 1
        self._news.set()

    async def _write_answers(self) -> None:
        with self._call.phases.spending("send"):
            while self._answers and not self._failed:
                name, frame, held = self._answers.popleft()
                # A caller that has the result may reuse its id, perhaps before the write is over.
                self._names.discard(name)
                await self._context.write(frame)
                self._progress = self._clock()
                self._in_flight -= 1
                if held:
                    self._memory.free(held)
                self._room.set()
