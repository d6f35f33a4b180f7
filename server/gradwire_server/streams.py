"""EvaluateStream: reading, computing and writing overlap, joined by queues that hold one step each.

A full queue stops the stage before it, and in the end grpc stops reading from the sender: memory is
bounded by what three steps need, whatever the tensor's size and whoever is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

import grpc
import numpy as np

from gradwire import v1
from gradwire._options import LEAST_CHUNK_BYTES
from gradwire_server import encoding, ranges, tasks, wire
from gradwire_server.callers import caller_of
from gradwire_server.calls import Call, Context
from gradwire_server.engine import (
    AdmittedStream,
    Evaluation,
    EvaluationRequest,
    InputAssembler,
    Ring,
    Step,
    StepRunner,
)
from gradwire_server.errors import (
    DrainingError,
    InvalidDataError,
    InvalidFieldError,
    OverloadedError,
    StalledError,
)
from gradwire_server.failures import Failure
from gradwire_server.service import Do, Workshop

# How long a caller that does not read may hold up the error that ends its stream.
_LAST_WORD_S = 5.0
_LISTEN_ON_S = 0.2
# Between two stages: one waits and one is in work.
_STEPS = 2
# Of a cancelled call grpc first says that its input ends, and only then cancels the handler.
_CANCELLATION_S = 0.1


class StreamService:
    """Answers EvaluateStream."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def evaluate_stream(self, _requests: object, context: Context) -> None:
        """Evaluate one operator on one tensor in chunks."""
        call = Call("EvaluateStream", context, self._workshop.active)
        stream = _Stream(call, self._workshop)
        await call.answer(stream.run, in_band=stream.send_error)


class _Stream:
    """One stream from open to its last result byte."""

    _admitted: AdmittedStream

    def __init__(self, call: Call, workshop: Workshop) -> None:
        self._call = call
        self._context = call.context
        self._workshop = workshop
        self._progress = time.monotonic()
        self._busy = False
        self._done = asyncio.Event()
        self._refused: OverloadedError | None = None
        self._refusal = asyncio.Event()
        self._write: asyncio.Task[None] | None = None
        self._read: asyncio.Task[Any] | None = None
        self._steps: asyncio.Queue[tuple[Step, encoding.Bytes] | None] = asyncio.Queue(1)
        self._results: asyncio.Queue[encoding.Chunk | None] = asyncio.Queue(1)

    async def run(self) -> None:
        """Answer the stream under watch."""
        await tasks.together(self._evaluate(), self._watch())

    async def send_error(self, failed: Failure) -> None:
        """Send an error as the last message, unless the caller does not read."""
        if self._write is not None and not self._write.done():
            await asyncio.wait({self._write}, timeout=_LAST_WORD_S)
            if not self._write.done():
                return
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                await self._context.write(v1.EvaluateStreamResponse(error=failed.in_band()))
        except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return
        if self._workshop.draining.is_set():
            await self._listen_on()

    async def _listen_on(self) -> None:
        """Go on reading for a moment, or until the caller has heard and goes.

        A connection that is closed while bytes wait to be read is reset, and a reset takes back
        what the caller has not read yet: the error.
        """
        with contextlib.suppress(TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
            async with asyncio.timeout(_LISTEN_ON_S):
                while await self._receive() is not grpc.aio.EOF:
                    pass

    async def _evaluate(self) -> None:
        workshop = self._workshop
        try:
            caller = caller_of(self._context)
            with workshop.admission.stream(caller, self._give_way) as self._admitted:
                header = await self._read_open()
                request = self._note(header)
                self._admitted.note_wait(for_caller=False)
                with self._call.phases.spending("queue"):
                    evaluation = await workshop.prepare(request, self._context)
                # Beside what steps hold, a chunk each way is on its way through grpc, twice.
                most = workshop.settings.max_chunk_bytes
                ways = (evaluation.input.wire_bytes, evaluation.output.wire_bytes)
                in_transit = sum(2 * min(most, each) for each in ways)
                with workshop.admission.memory(evaluation.memory_bytes + in_transit):
                    await self._answer(header, evaluation)
        finally:
            self._done.set()

    def _give_way(self, refused: OverloadedError) -> None:
        """End for want of room."""
        self._refused = refused
        self._refusal.set()

    def _note(self, header: v1.Open) -> EvaluationRequest:
        """Return the request; its log line and metrics tell of it, also where it is refused."""
        request = wire.read_request(header)
        self._call.note_request(request.operator, request.input, received=0)
        self._call.facts["resume_from"] = header.resume_from
        if header.stop_before:
            self._call.facts["stop_before"] = header.stop_before
        return request

    async def _read_open(self) -> v1.Open:
        message = await self._next()
        if message is None:
            await asyncio.sleep(_CANCELLATION_S)
            raise InvalidDataError("open", "half-close came first; a stream starts with open")
        if isinstance(message, encoding.Chunk):
            raise InvalidDataError("open", "chunk came first; a stream starts with open")
        wire.refuse_unknown_fields(message, "")
        if message.WhichOneof("message") != "open":
            came = message.WhichOneof("message") or "an empty message"
            raise InvalidDataError("open", f"{came} came first; a stream starts with open")
        header = message.open
        self._call.request_id = wire.read_request_id(header.request_id) or self._call.request_id
        if header.max_chunk_bytes and header.max_chunk_bytes < LEAST_CHUNK_BYTES:
            raise InvalidFieldError(
                "open.max_chunk_bytes",
                f"{header.max_chunk_bytes}; 0 or at least {LEAST_CHUNK_BYTES} is needed",
            )
        return header

    async def _answer(self, header: v1.Open, evaluation: Evaluation) -> None:
        digest = await self._workshop.off_loop(lambda: evaluation.digest)
        wanted = ranges.wanted_bytes(header, evaluation, digest)
        assembler = InputAssembler(
            evaluation, resume_from=wanted.start, stop_before=wanted.stop, held=_STEPS
        )
        through = evaluation.passes_through
        limit = self._workshop.settings.max_chunk_bytes
        needed = wanted if through else range(assembler.position, assembler.stop)
        output = wire.write_descriptor(evaluation.output)
        if needed:
            # From here on: a caller may be slow to take the answer, too.
            self._admitted.note_wait(for_caller=True)
        else:
            self._admitted.note_data()
        await self._send(ranges.opened(output, needed, digest=digest, max_chunk_bytes=limit))
        stages = [self._write_results(min(header.max_chunk_bytes or limit, limit))]
        if through:
            stages += [self._pass_on(wanted.start, wanted.stop)]
        else:
            stages += [self._read_input(assembler), self._compute(evaluation, wanted)]
        await tasks.together(*stages)

    async def _pass_on(self, position: int, total: int) -> None:
        """Hand the input's bytes from a position on to the writer as they come."""
        while (message := await self._next()) is not None:
            chunk = self._check_chunk(message, position, total)
            self._call.received_bytes += len(chunk.data)
            self._call.note_step(2 * len(chunk.data))
            await self._results.put(chunk)
            position += len(chunk.data)
        if position != total:
            raise await _cut_short(position, total)
        await self._results.put(None)

    async def _read_input(self, assembler: InputAssembler) -> None:
        for ready in assembler.feed(_NOTHING):
            await self._steps.put(ready)
        while (message := await self._next()) is not None:
            chunk = self._check_chunk(message, assembler.position, assembler.stop)
            self._call.received_bytes += len(chunk.data)
            for ready in assembler.feed(chunk.data):
                await self._steps.put(ready)
        if not assembler.complete:
            raise await _cut_short(assembler.position, assembler.stop)
        await self._steps.put(None)

    def _check_chunk(
        self, message: encoding.StreamRequest, position: int, total: int
    ) -> encoding.Chunk:
        chunk = message if isinstance(message, encoding.Chunk) else _read_chunk(message)
        data = chunk.data
        limit = self._workshop.settings.max_chunk_bytes
        if chunk.offset != position:
            raise InvalidDataError("chunk.offset", f"{chunk.offset}; {position} comes next")
        if not 1 <= len(data) <= limit:
            raise InvalidDataError("chunk.data", f"{len(data)} bytes; 1 to {limit} are taken")
        if position + len(data) > total:
            raise InvalidDataError("chunk.data", f"ends at byte {position + len(data)} of {total}")
        self._admitted.note_data()
        return chunk

    async def _compute(self, evaluation: Evaluation, wanted: range) -> None:
        left = len(wanted) / evaluation.output.wire_bytes
        with self._workshop.computing(evaluation, self._call, left=left) as do:
            await self._compute_steps(evaluation, wanted, do)

    async def _compute_steps(self, evaluation: Evaluation, wanted: range, do: Do) -> None:
        run = StepRunner(evaluation.walk, self._workshop.backend)
        results = Ring(_STEPS + 1)
        while (ready := await self._steps.get()) is not None:
            step, data = ready
            offset, stop = evaluation.output_range(step)
            self._busy = True
            result = results.take(stop - offset)
            await do(partial(run, step, data, result))
            self._busy = False
            self._progress = time.monotonic()
            self._call.note_step(len(data) + len(result))
            skipped = max(0, wanted.start - offset)
            part = result[skipped : wanted.stop - offset]
            if len(part):
                await self._results.put(encoding.Chunk(offset + skipped, part))
        await self._results.put(None)

    async def _write_results(self, chunk_bytes: int) -> None:
        while (ready := await self._results.get()) is not None:
            for part in ready.parts(chunk_bytes):
                await self._send(encoding.chunk_response(part))
                self._call.sent_bytes += len(part.data)

    async def _next(self) -> encoding.StreamRequest | None:
        with self._call.phases.spending("receive"):
            message = await self._receive()
        self._progress = time.monotonic()
        return None if message is grpc.aio.EOF else encoding.sound(message)

    async def _receive(self) -> Any:
        # As with a write: what is under way when its task ends is taken up by the next one.
        if self._read is None:
            self._read = asyncio.ensure_future(self._context.read())
            self._read.add_done_callback(tasks.note_error)
        message = await asyncio.shield(self._read)
        self._read = None
        return message

    async def _send(self, message: bytes | v1.EvaluateStreamResponse) -> None:
        # A write outlives the task that started it, so that no second one runs into it.
        self._write = asyncio.ensure_future(self._context.write(message))
        self._write.add_done_callback(tasks.note_error)
        with self._call.phases.spending("send"):
            await asyncio.shield(self._write)
        self._progress = time.monotonic()

    async def _watch(self) -> None:
        timeout = self._workshop.settings.stall_timeout_s
        while not self._done.is_set():
            idle = 0.0 if self._busy else time.monotonic() - self._progress
            if idle >= timeout:
                raise StalledError(
                    f"no progress for {timeout} s (GRADWIRE_STALL_TIMEOUT_S)", timeout_s=timeout
                )
            if self._workshop.draining.is_set():
                raise DrainingError("the server is shutting down; resume on another one")
            if self._refused is not None:
                raise self._refused
            events = (self._done, self._workshop.draining, self._refusal)
            waits = [asyncio.ensure_future(event.wait()) for event in events]
            left = timeout - idle
            try:
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                tasks.cancel(waits)


_NOTHING = np.empty(0, np.uint8)


def _read_chunk(message: v1.EvaluateStreamRequest) -> encoding.Chunk:
    """Take a chunk out of a message that is not written as most are."""
    wire.refuse_unknown_fields(message, "")
    came = message.WhichOneof("message") or "an empty message"
    if came != "chunk":
        raise InvalidDataError("chunk", f"{came} came; only chunks follow open")
    wire.refuse_unknown_fields(message.chunk, "chunk")
    return encoding.Chunk(message.chunk.offset, np.frombuffer(message.chunk.data, np.uint8))


async def _cut_short(position: int, total: int) -> InvalidDataError:
    await asyncio.sleep(_CANCELLATION_S)
    came = f"half-close after {position} of {total} bytes"
    return InvalidDataError("chunk", f"{came}; all are needed")
