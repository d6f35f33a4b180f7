"""The EvaluateStream RPC: evaluation of one large tensor in chunks.

One task reads, one computes, one writes, joined by queues of one step each. A full queue blocks the
task before it, until grpc stops reading from the sender: memory is bounded by three steps' needs,
whatever the tensor's size and whichever side is slow.

The tasks that read and write run as long as the call: cancelling a read or a write would leave it
pending in grpc. After the stream has failed they discard their input.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import grpc
import numpy as np

from gradwire import v1
from gradwire._wire.arguments import LEAST_CHUNK_BYTES
from gradwire_server.engine import (
    EvaluationRequest,
    Execution,
    InputAssembler,
    Prepared,
    Ring,
    Step,
)
from gradwire_server.errors import (
    DigestMismatchError,
    DrainingError,
    InvalidDataError,
    InvalidFieldError,
    ServerFullError,
    StalledError,
)
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, Context, caller_of
from gradwire_server.rpc.service_context import Do, ServiceContext
from gradwire_server.rpc.status_map import ErrorStatus
from gradwire_server.scheduling import tasks
from gradwire_server.scheduling.admission import AdmittedStream


def wanted_bytes(header: v1.Open, prepared: Prepared, digest: str) -> range:
    """Return the range of result bytes that a stream requests.

    Raises InvalidFieldError if the result has no such bytes, DigestMismatchError if the evaluation
    differs from the one named.
    """
    total = prepared.output.wire_bytes
    first, stop = header.resume_from, header.stop_before or total
    if total == first == stop == 0:
        return _same_evaluation(header, digest, range(0))
    if not 0 <= first < total:
        there = f"the result has bytes 0 to {total - 1}" if total else "the result is empty: give 0"
        raise InvalidFieldError("open.resume_from", f"{first}; {there}")
    if not first < stop <= total:
        raise InvalidFieldError(
            "open.stop_before",
            f"{stop}; a result of {total} bytes that is wanted from byte {first} on ends before "
            f"byte {first + 1} to {total}, or 0 for all",
        )
    return _same_evaluation(header, digest, range(first, stop))


def _same_evaluation(header: v1.Open, digest: str, wanted: range) -> range:
    if header.evaluation_digest not in {"", digest}:
        raise DigestMismatchError(
            f"open.evaluation_digest is {header.evaluation_digest:.64}; this server computes "
            f"{digest}: start again at byte 0 without a digest",
            digest=digest,
        )
    return wanted


def opened(
    output: v1.TensorDescriptor, wants: range, *, digest: str, max_chunk_bytes: int
) -> v1.EvaluateStreamResponse:
    """Return the answer to open; wants are the input bytes to send."""
    return v1.EvaluateStreamResponse(
        opened=v1.Opened(
            output=output,
            read_from_byte=wants.start,
            read_before_byte=wants.stop,
            evaluation_digest=digest,
            max_chunk_bytes=max_chunk_bytes,
        )
    )


# Time to write the error that ends a stream to a caller that does not read.
_LAST_WORD_S = 5.0
_LISTEN_ON_S = 0.2
# Steps between two tasks: one waits, one is being processed.
_STEPS = 2
# grpc first reports the end of a cancelled call's input, and only then cancels the handler.
_CANCELLATION_S = 0.1


class StreamService:
    """Handler of EvaluateStream."""

    def __init__(self, service: ServiceContext) -> None:
        self._service = service

    async def evaluate_stream(self, _requests: object, context: Context) -> None:
        """Evaluate one operator on one tensor in chunks."""
        call = ActiveCall("EvaluateStream", context, self._service.active)
        stream = _EvaluationStream(call, self._service)
        try:
            await call.answer(stream.run, in_band=stream.send_error)
        finally:
            await stream.close()


class _EvaluationStream:
    """One stream from open to its last result byte."""

    _admitted: AdmittedStream

    def __init__(self, call: ActiveCall, service: ServiceContext) -> None:
        self._call = call
        self._context = call.context
        self._service = service
        self._clock = asyncio.get_running_loop().time
        self._progress = self._clock()
        self._busy = False
        self._done = asyncio.Event()
        self._refused: ServerFullError | None = None
        self._refusal = asyncio.Event()
        self._failed = False
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._no_write = asyncio.Event()
        self._no_write.set()
        self._first: asyncio.Future[codec.StreamRequest | None] = _future()
        self._input_wanted = asyncio.Event()
        self._assembler: InputAssembler | None = None
        self._wanted = range(0)
        self._steps: asyncio.Queue[tuple[Step, codec.Bytes] | None] = asyncio.Queue(1)
        self._responses: asyncio.Queue[codec.Chunk | bytes | None] = asyncio.Queue(1)
        self._chunk_bytes = service.settings.max_chunk_bytes

    async def run(self) -> None:
        """Serve the stream, and end it if it stalls."""
        self._reader = asyncio.ensure_future(self._read())
        self._writer = asyncio.ensure_future(self._write())
        await tasks.together(self._evaluate(), self._watch(), beside=(self._reader, self._writer))

    async def send_error(self, failed: ErrorStatus) -> None:
        """Send an error as the last message, unless the caller does not read."""
        self._failed = True
        for queue in (self._steps, self._responses):
            while not queue.empty():
                queue.get_nowait()
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                await self._no_write.wait()
                await self._context.write(v1.EvaluateStreamResponse(error=failed.in_band()))
        except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return
        if self._service.draining.is_set() and self._reader is not None:
            # Closing a connection with unread bytes resets it, and a reset discards data that the
            # caller has not read yet: the error.
            self._input_wanted.set()
            await asyncio.wait({self._reader}, timeout=_LISTEN_ON_S)

    async def close(self) -> None:
        """End the tasks that read and write."""
        left = [task for task in (self._reader, self._writer) if task is not None]
        # Otherwise the traceback of a failed task refers to itself and keeps all buffers alive.
        self._reader = self._writer = None
        tasks.cancel(left)
        await asyncio.gather(*left, return_exceptions=True)
        if self._first.done() and not self._first.cancelled():
            self._first.exception()  # which nobody may have asked for

    async def _evaluate(self) -> None:
        service = self._service
        try:
            caller = caller_of(self._context)
            with service.admission.stream(caller, self._give_way) as self._admitted:
                header = await self._read_open()
                request = self._note(header)
                self._admitted.note_wait(for_caller=False)
                with self._call.phases.spending("queue"):
                    prepared = await service.prepare(request, self._context)
                # Besides the steps' memory, grpc holds one chunk each way, twice.
                most = service.settings.max_chunk_bytes
                ways = (prepared.input.wire_bytes, prepared.output.wire_bytes)
                in_transit = sum(2 * min(most, each) for each in ways)
                with service.admission.memory(prepared.memory_bytes + in_transit):
                    await self._answer(header, prepared)
        finally:
            self._done.set()

    def _give_way(self, refused: ServerFullError) -> None:
        """End the stream to make room for another one."""
        self._refused = refused
        self._refusal.set()

    def _note(self, header: v1.Open) -> EvaluationRequest:
        """Return the request, and note it for the log line and metrics, even if it is refused."""
        request = codec.read_request(header)
        self._call.note_request(request, received=0)
        self._call.facts["resume_from"] = header.resume_from
        if header.stop_before:
            self._call.facts["stop_before"] = header.stop_before
        return request

    async def _read_open(self) -> v1.Open:
        message = await self._first
        if message is None:
            await asyncio.sleep(_CANCELLATION_S)
            raise InvalidDataError("open", "half-close came first; a stream starts with open")
        if isinstance(message, codec.Chunk):
            raise InvalidDataError("open", "chunk came first; a stream starts with open")
        codec.refuse_unknown_fields(message, "")
        if message.WhichOneof("message") != "open":
            came = message.WhichOneof("message") or "an empty message"
            raise InvalidDataError("open", f"{came} came first; a stream starts with open")
        header = message.open
        self._call.request_id = codec.read_request_id(header.request_id) or self._call.request_id
        if header.max_chunk_bytes and header.max_chunk_bytes < LEAST_CHUNK_BYTES:
            raise InvalidFieldError(
                "open.max_chunk_bytes",
                f"{header.max_chunk_bytes}; 0 or at least {LEAST_CHUNK_BYTES} is needed",
            )
        return header

    async def _answer(self, header: v1.Open, prepared: Prepared) -> None:
        digest = await self._service.off_loop(lambda: prepared.digest)
        wanted = wanted_bytes(header, prepared, digest)
        assembler = InputAssembler(
            prepared, resume_from=wanted.start, stop_before=wanted.stop, held=_STEPS
        )
        through = prepared.passes_through
        limit = self._service.settings.max_chunk_bytes
        needed = wanted if through else range(assembler.position, assembler.stop)
        output = codec.write_descriptor(prepared.output)
        if needed:
            # From here on, since a caller may also be slow to read the answer.
            self._admitted.note_wait(for_caller=True)
        else:
            self._admitted.note_data()
        reply = opened(output, needed, digest=digest, max_chunk_bytes=limit)
        self._chunk_bytes = min(header.max_chunk_bytes or limit, limit)
        await self._responses.put(reply.SerializeToString())
        self._wanted, self._assembler = wanted, None if through else assembler
        self._input_wanted.set()
        if not through:
            await self._compute(prepared, wanted)
        if self._writer is not None:
            await asyncio.wait({self._writer})

    async def _pass_on(self, position: int, total: int) -> None:
        """Pass the input's bytes from a position on to the writer as they arrive."""
        while (message := await self._next()) is not None:
            chunk = self._check_chunk(message, position, total)
            self._call.received_bytes += len(chunk.data)
            self._call.note_step(2 * len(chunk.data))
            await self._responses.put(chunk)
            position += len(chunk.data)
        if position != total:
            raise await _cut_short(position, total)
        await self._responses.put(None)

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

    def _check_chunk(self, message: codec.StreamRequest, position: int, total: int) -> codec.Chunk:
        chunk = message if isinstance(message, codec.Chunk) else _read_chunk(message)
        data = chunk.data
        limit = self._service.settings.max_chunk_bytes
        if chunk.offset != position:
            raise InvalidDataError("chunk.offset", f"{chunk.offset}; {position} comes next")
        if not 1 <= len(data) <= limit:
            raise InvalidDataError("chunk.data", f"{len(data)} bytes; 1 to {limit} are taken")
        if position + len(data) > total:
            raise InvalidDataError("chunk.data", f"ends at byte {position + len(data)} of {total}")
        self._admitted.note_data()
        return chunk

    async def _compute(self, prepared: Prepared, wanted: range) -> None:
        left = len(wanted) / prepared.output.wire_bytes
        with self._service.computing(prepared, self._call, left=left) as do:
            await self._compute_steps(prepared, wanted, do)

    async def _compute_steps(self, prepared: Prepared, wanted: range, do: Do) -> None:
        execution = Execution(prepared, self._service.backend)
        results = Ring(_STEPS + 1)
        while (ready := await self._steps.get()) is not None:
            step, data = ready
            offset, stop = prepared.output_range(step)
            result = results.take(stop - offset)
            self._busy = True
            await do(partial(execution.step, step, data, result))
            self._busy = False
            self._progress = self._clock()
            self._call.note_step(len(data) + len(result))
            skipped = max(0, wanted.start - offset)
            part = result[skipped : wanted.stop - offset]
            if len(part):
                await self._responses.put(codec.Chunk(offset + skipped, part))
        await self._responses.put(None)

    async def _read(self) -> None:
        """Read as long as the call lasts: the first message, then the input."""
        try:
            self._first.set_result(await self._next())
        except InvalidDataError as error:
            self._first.set_exception(error)
        await self._input_wanted.wait()
        if self._failed:
            await self._discard_input()
        elif self._assembler is None:
            await self._pass_on(self._wanted.start, self._wanted.stop)
        else:
            await self._read_input(self._assembler)

    async def _discard_input(self) -> None:
        while await self._context.read() is not grpc.aio.EOF:
            pass

    async def _next(self) -> codec.StreamRequest | None:
        with self._call.phases.spending("receive"):
            message = await self._context.read()
        if self._failed:
            await self._discard_input()
            return None
        self._progress = self._clock()
        return None if message is grpc.aio.EOF else codec.well_formed(message)

    async def _write(self) -> None:
        """Write as long as the call lasts, until the last response or a failure."""
        while (response := await self._responses.get()) is not None:
            if isinstance(response, bytes):
                await self._send(response)
                continue
            for part in response.parts(self._chunk_bytes):
                await self._send(codec.chunk_response(part))
                self._call.sent_bytes += len(part.data)

    async def _send(self, message: bytes) -> None:
        if self._failed:
            return
        self._no_write.clear()
        try:
            with self._call.phases.spending("send"):
                await self._context.write(message)
        finally:
            self._no_write.set()
        self._progress = self._clock()

    async def _watch(self) -> None:
        timeout = self._service.settings.stall_timeout_s
        while not self._done.is_set():
            idle = 0.0 if self._busy else self._clock() - self._progress
            if idle >= timeout:
                raise StalledError(
                    f"no progress for {timeout} s (GRADWIRE_STALL_TIMEOUT_S)", timeout_s=timeout
                )
            if self._service.draining.is_set():
                raise DrainingError("the server is shutting down; resume on another one")
            if self._refused is not None:
                raise self._refused
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout - idle):
                    await tasks.first(self._done, self._service.draining, self._refusal)


_NOTHING = np.empty(0, np.uint8)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _read_chunk(message: v1.EvaluateStreamRequest) -> codec.Chunk:
    """Return the chunk of a message whose encoding differs from the usual one."""
    codec.refuse_unknown_fields(message, "")
    came = message.WhichOneof("message") or "an empty message"
    if came != "chunk":
        raise InvalidDataError("chunk", f"{came} came; only chunks follow open")
    codec.refuse_unknown_fields(message.chunk, "chunk")
    return codec.Chunk(message.chunk.offset, np.frombuffer(message.chunk.data, np.uint8))


async def _cut_short(position: int, total: int) -> InvalidDataError:
    await asyncio.sleep(_CANCELLATION_S)
    came = f"half-close after {position} of {total} bytes"
    return InvalidDataError("chunk", f"{came}; all are needed")
