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
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import grpc
import numpy as np

from gradwire import v1
from gradwire._wire.framing import Parts, many_result_frame, read_many_request
from gradwire_server.backends import Backend
from gradwire_server.engine import Prepared, in_memory, together
from gradwire_server.errors import (
    DrainingError,
    InvalidDataError,
    ServerFullError,
    StalledError,
    StartingError,
)
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, Caller, Context, caller_of, claim_of_batch
from gradwire_server.rpc.codec import Bytes, NoMessageError
from gradwire_server.rpc.service_context import ServiceContext, take_turn
from gradwire_server.rpc.status_map import ErrorStatus, failure
from gradwire_server.scheduling import tasks
from gradwire_server.scheduling.admission import AdmittedStream, StreamMemory


@dataclass(frozen=True, slots=True, eq=False)
class BatchItem:
    """A request in flight.

    name  request_id
    data  bytes of the input
    """

    name: bytes
    prepared: Prepared
    data: memoryview


async def find_prepared(header: bytes, service: ServiceContext, context: Caller) -> Prepared:
    """Return the Prepared of a request's header: all fields except request_id and data.

    Raises EvaluationError if the request cannot be evaluated here, NoMessageError if the header
    is not an EvaluateRequest.
    """
    prepared = service.preparer.find(header)
    if prepared is not None:
        return prepared
    decoded = codec.read_request(codec.request_header(header))
    service.refuse_bulk(decoded, "EvaluateMany")
    return await service.prepare(decoded, context, header=header)


def read_item(message: bytes) -> Parts:
    """Return the request_id, the header and the data of a message.

    Raises InvalidDataError or UnknownFieldError if the message holds no request, or a request
    without a valid request_id, to which no result could be matched.
    """
    name, header, data = read_many_request(message) or _parse(message)
    if not name:
        raise InvalidDataError(
            "evaluation.request_id", "empty; answers are found by it: give each request another one"
        )
    if len(name) > codec.MAX_REQUEST_ID:
        raise InvalidDataError(
            "evaluation.request_id",
            f"{len(name)} bytes; answers are found by it, and carry at most {codec.MAX_REQUEST_ID}",
        )
    return name, header, data


def equal_requests(items: Sequence[BatchItem]) -> Iterator[list[BatchItem]]:
    """Group the items that can be computed together, in the order of their first items."""
    groups: dict[Prepared, list[BatchItem]] = {}
    for item in items:
        groups.setdefault(item.prepared, []).append(item)
    for prepared, group in groups.items():
        most = max(1, prepared.most_at_once)
        for first in range(0, len(group), most):
            yield group[first : first + most]


def compute_items(items: Sequence[BatchItem], backend: Backend) -> codec.Bytes:
    """Return the results of one such group, [item, byte]; each item is one step."""
    return together(items[0].prepared, [each.data for each in items], backend)


async def compute_in_turn(
    items: Sequence[BatchItem], service: ServiceContext, call: ActiveCall
) -> codec.Bytes:
    """Compute a group in a thread, in its turn; an item may have several steps."""
    prepared, backend = items[0].prepared, service.backend
    at_once = prepared.most_at_once > 0
    claim = claim_of_batch(prepared, call.context, count=len(items), at_once=at_once)
    with service.turns(claim, call) as do:
        if at_once:
            return await do(partial(compute_items, items, backend))
        # Kernels need aligned data; in the message it may lie at any offset.
        data = np.frombuffer(bytes(items[0].data), np.uint8)
        result = np.empty((1, prepared.output.wire_bytes), np.uint8)
        steps = in_memory(prepared, result[0], data, backend)
        while await do(partial(take_turn, steps)):
            pass
        return result


def _parse(message: bytes) -> Parts:
    """Parse a message whose encoding differs from the usual one."""
    inside = v1.EvaluateManyRequest.EVALUATION_FIELD_NUMBER
    request = codec.parse(v1.EvaluateManyRequest, message, inside=inside)
    codec.refuse_unknown_fields(request, "")
    if not request.HasField("evaluation"):
        raise InvalidDataError("evaluation", "not set; every message holds one")
    return codec.parts_of(request.evaluation)


_log = logging.getLogger("gradwire_server")

# Event loop iterations left to the reader, some microseconds each. Measured: with three, the server
# computes about eight times as many requests at once and answers a third more per second.
_TURNS = 3
# Time to write the error that ends a stream to a caller that does not read.
_LAST_WORD_S = 5.0
# Time to keep reading from a caller that may not have read yet that the server stops.
_LISTEN_ON_S = 0.2


class ManyService:
    """Handler of EvaluateMany."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def evaluate_many(self, _requests: object, context: Context) -> None:
        """Evaluate one operator on one small tensor, again and again."""
        call = ActiveCall("EvaluateMany", context, self._service.active)
        stream = _BatchStream(call, self._service)
        try:
            await call.answer(stream.run, in_band=stream.send_error)
        finally:
            await stream.close()


class _BatchStream:
    """One stream, from its first request to its last result."""

    _admitted: AdmittedStream

    def __init__(self, call: ActiveCall, service: ServiceContext) -> None:
        self._call = call
        self._context = call.context
        self._service = service
        self._reader: asyncio.Task[None] | None = None
        self._answerer: asyncio.Task[None] | None = None
        # Requests that wait for a thread, the number of busy threads, and their tasks.
        self._large: list[BatchItem] = []
        self._busy = 0
        self._threads: set[asyncio.Task[None]] = set()
        # request_ids in use until their results are written.
        self._names: set[bytes] = set()
        self._in_flight = 0
        # One request per computing thread, and the next one for each.
        few = 2 * service.settings.threads
        self._memory = StreamMemory(service.admission, few=few)
        self._arrived: list[BatchItem] = []
        # request_ids, messages, and bytes of the memory budget that the requests hold.
        self._answers: deque[tuple[bytes, bytes, int]] = deque()
        # _news is set when a request or a result arrives, _room when a result was written.
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._input_ended = self._stopped = False
        self._clock = asyncio.get_running_loop().time
        self._progress = self._clock()
        self._refused: ServerFullError | None = None
        self._refusal = asyncio.Event()
        self._counts = {"items": 0, "items_failed": 0}

    async def run(self) -> None:
        """Serve the stream, and end it if it stalls."""
        caller = caller_of(self._context)
        with self._service.admission.stream(caller, self._give_way) as self._admitted:
            self._reader = asyncio.ensure_future(self._read())
            self._answerer = asyncio.ensure_future(self._answer())
            watch = asyncio.ensure_future(self._watch())
            waiting = {self._reader, self._answerer, watch}
            try:
                while self._answerer in waiting:
                    ended, waiting = await asyncio.wait(
                        waiting, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in ended:
                        task.result()
            finally:
                watch.cancel()
                self._call.facts |= self._counts

    def _give_way(self, refused: ServerFullError) -> None:
        """End the stream to make room for another one."""
        self._refused = refused
        self._refusal.set()

    async def send_error(self, failed: ErrorStatus) -> None:
        """Send an error as the last message, unless the caller does not read."""
        self._stopped = True
        self._news.set()
        self._room.set()
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                if self._answerer is not None:
                    # A write must not be cancelled: no other could follow it.
                    await asyncio.wait({self._answerer})
                response = v1.EvaluateManyResponse(error=failed.in_band())
                await self._context.write(response.SerializeToString())
        except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return
        if self._service.draining.is_set() and self._reader is not None:
            # Closing a connection with unread bytes resets it, and a reset discards data that the
            # caller has not read yet: the error.
            await asyncio.wait({self._reader}, timeout=_LISTEN_ON_S)

    async def close(self) -> None:
        """Cancel the remaining tasks and free the memory they hold."""
        left = [task for task in (self._reader, self._answerer, *self._threads) if task]
        tasks.cancel(left)
        try:
            # If the caller disconnects only now, grpc cancels this too.
            await asyncio.gather(*left, return_exceptions=True)
        finally:
            self._memory.free_all()

    async def _read(self) -> None:
        most = self._service.settings.max_in_flight
        with self._call.phases.spending("receive"):
            while (message := await self._context.read()) is not grpc.aio.EOF:
                self._progress = self._clock()
                if self._stopped:
                    continue
                await self._take(message)
                while self._in_flight >= most and not self._stopped:
                    await self._wait_for_room()
        self._input_ended = True
        self._news.set()

    async def _take(self, message: bytes) -> None:
        self._admitted.note_data()
        name, header, data = read_item(message)
        if name in self._names:
            raise InvalidDataError(
                "evaluation.request_id", "in use; a request may have it when this one is answered"
            )
        self._names.add(name)
        self._in_flight += 1
        self._counts["items"] += 1
        self._call.received_bytes += len(data)
        try:
            codec.read_request_id(name.decode())
            prepared = await find_prepared(header, self._service, self._context)
            codec.check_data_length(len(data), prepared.request)
            await self._admit(prepared.message_bytes)
        except (NoMessageError, StartingError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
            self._refuse(name, error)
        else:
            self._arrived.append(BatchItem(name, prepared, data))
            self._news.set()

    async def _admit(self, needed: int) -> None:
        """Take memory from the budget; wait if other requests of this stream hold it."""
        while self._memory.must_wait(needed) and not self._stopped:
            await self._wait_for_room()
        self._memory.take(needed)

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def _answer(self) -> None:
        while not self._stopped:
            self._news.clear()
            await self._read_on()
            arrived, self._arrived = self._arrived, []
            for items in equal_requests(arrived):
                await self._compute_here(items)
            self._start_threads()
            await self._write_answers()
            if self._input_ended and not self._in_flight:
                return
            if not (self._arrived or self._answers):
                await self._news.wait()

    async def _read_on(self) -> None:
        """Let the reader take messages that have arrived: one per event loop iteration."""
        if self._arrived:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    def _start_threads(self) -> None:
        """Start free threads, each on all requests equal to the longest waiting one."""
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
            results = await compute_in_turn(items, self._service, self._call)
        except Exception as error:  # noqa: BLE001 - the callers of these requests get it
            self._busy -= 1
            self._fail(items, error)
        else:
            self._busy -= 1
            self._finish(items, results)

    async def _compute_here(self, items: Sequence[BatchItem]) -> None:
        """Compute equal items if they are short, some in each event loop iteration."""
        inline, prepared = self._service.inline, items[0].prepared
        while items and not self._stopped:
            if not prepared.most_at_once or not inline.is_short(prepared):
                self._large += items
                return
            most = inline.most(prepared)
            now, items = items[:most], items[most:]
            if now:
                self._compute(now)
            # Yield to other tasks before the next items.
            await (self._write_answers() if now else asyncio.sleep(0))

    def _compute(self, items: Sequence[BatchItem]) -> None:
        try:
            compute = partial(compute_items, items, self._service.backend)
            results = self._call.compute_inline(compute, self._service.inline)
        except Exception as error:  # noqa: BLE001 - likewise
            self._fail(items, error)
        else:
            self._finish(items, results)

    def _finish(self, items: Sequence[BatchItem], results: Bytes) -> None:
        self._call.note_items(items[0].prepared.request, len(items))
        self._call.sent_bytes += results.size
        length = results.shape[1]
        data = results.reshape(-1).data
        for number, each in enumerate(items):
            one = data[number * length : (number + 1) * length]
            frame = many_result_frame(each.name, each.prepared.response_header, one)
            self._answers.append((each.name, frame, each.prepared.message_bytes))
        self._news.set()

    def _fail(self, items: Sequence[BatchItem], error: Exception) -> None:
        for each in items:
            self._refuse(each.name, error, held=each.prepared.message_bytes)

    def _refuse(self, name: bytes, error: Exception, *, held: int = 0) -> None:
        """Answer one request with an error."""
        request_id = name.decode()
        failed = failure(error).within(request_id=request_id, traceparent=self._call.traceparent)
        if failed.code is grpc.StatusCode.INTERNAL:
            facts = {"request_id": request_id, "traceparent": self._call.traceparent}
            _log.error("item", extra={"facts": facts}, exc_info=error)
        self._call.note_failed_item(failed)
        response = v1.EvaluateManyResponse(request_id=request_id, error=failed.in_band())
        self._answers.append((name, response.SerializeToString(), held))
        self._counts["items_failed"] += 1
        self._news.set()

    async def _write_answers(self) -> None:
        with self._call.phases.spending("send"):
            while self._answers and not self._stopped:
                name, frame, held = self._answers.popleft()
                # A caller that has the result may reuse its id, perhaps before the write is over.
                self._names.discard(name)
                await self._context.write(frame)
                self._progress = self._clock()
                self._in_flight -= 1
                if held:
                    self._memory.free(held)
                self._room.set()

    async def _watch(self) -> None:
        timeout = self._service.settings.stall_timeout_s
        while not self._service.draining.is_set():
            idle = 0.0 if self._busy else self._clock() - self._progress
            if idle >= timeout:
                raise StalledError(
                    f"no progress for {timeout} s (GRADWIRE_STALL_TIMEOUT_S)", timeout_s=timeout
                )
            if self._refused is not None:
                raise self._refused
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout - idle):
                    await tasks.first(self._service.draining, self._refusal)
        raise DrainingError("the server is shutting down; send what is unanswered to another one")
