"""The EvaluateStream RPC: evaluation of one large tensor in chunks.

One task reads, one computes, one writes, joined by queues of one step each. A full queue blocks the
task before it, until grpc stops reading from the sender: memory is bounded by three steps' needs,
for every size of the tensor, and if either side is slow.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial

import grpc
import numpy as np

from gradwire import v1
from gradwire._wire import checksums
from gradwire._wire.framing import chunk_frame
from gradwire._wire.requests import LEAST_CHUNK_BYTES
from gradwire_server.engine import Execution, InputAssembler, Prepared, Step
from gradwire_server.errors import DigestMismatchError, InvalidDataError, InvalidFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import Context, half_close
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.streaming import ServedStream
from gradwire_server.scheduling.scheduler import Turns


def wanted_bytes(header: v1.Open, prepared: Prepared, digest: str) -> range:
    """Return the range of result bytes that a stream requests.

    Raises InvalidFieldError if the result has no such bytes, DigestMismatchError if the evaluation
    differs from the one named.
    """
    total = prepared.output.wire_bytes
    first, stop = header.resume_from, header.stop_before or total
    is_empty = total == first == stop == 0
    if not (is_empty or 0 <= first < total):
        there = f"the result has bytes 0 to {total - 1}" if total else "the result is empty: give 0"
        raise InvalidFieldError("open.resume_from", f"{first}; {there}")
    if not (is_empty or first < stop <= total):
        raise InvalidFieldError(
            "open.stop_before",
            f"{stop}; a result of {total} bytes that is wanted from byte {first} on ends before "
            f"byte {first + 1} to {total}, or 0 for all",
        )
    if header.evaluation_digest not in {"", digest}:
        raise DigestMismatchError(
            f"open.evaluation_digest is {header.evaluation_digest:.64}; this server computes "
            f"{digest}: start again at byte 0 without a digest",
            digest=digest,
        )
    return range(first, stop)


class EvaluationStream(ServedStream):
    """One stream of EvaluateStream, from open to its last result byte."""

    METHOD = "EvaluateStream"
    RESPONSE = v1.EvaluateStreamResponse
    RESUME = "resume on another one"

    def __init__(self, service: ServiceContext, context: Context) -> None:
        super().__init__(service, context)
        # The first message, then what takes the others; None if the stream has failed.
        self._first = asyncio.Future[bytes | None]()
        self._wanted = asyncio.Future[InputAssembler | None]()
        self._steps: asyncio.Queue[tuple[Step, codec.Bytes] | None] = asyncio.Queue(1)
        self._responses: asyncio.Queue[tuple[int, codec.Bytes] | bytes | None] = asyncio.Queue(1)
        self._chunk_bytes = service.settings.max_chunk_bytes
        # Checksums that those of later messages continue: open's and opened's.
        self._open_checksum: int | None = None
        self._opened_checksum: int | None = None

    def _stop(self) -> None:
        for queue in (self._steps, self._responses):
            while not queue.empty():
                queue.get_nowait()
        self._responses.put_nowait(None)
        if not self._wanted.done():
            self._wanted.set_result(None)

    async def _evaluate(self) -> None:
        service = self._service
        header = await self._read_open()
        request = codec.read_request(header)
        # Noted even if it is refused.
        self._call.note_request(request, received=0)
        self._call.facts["resume_from"] = header.resume_from
        if header.stop_before:
            self._call.facts["stop_before"] = header.stop_before
        with self._call.phases.spending("queue"):
            prepared = await service.prepare(request, self._call)
        # Besides the steps' memory, grpc holds one chunk each way, twice.
        most = service.settings.max_chunk_bytes
        ways = (prepared.input.wire_bytes, prepared.output.wire_bytes)
        in_transit = sum(2 * min(most, each) for each in ways)
        with service.admission.memory(prepared.memory_bytes + in_transit):
            await self._answer(header, prepared)

    async def _read_open(self) -> v1.Open:
        message = await self._first
        if message is None:
            raise await half_close("open", "half-close came first; a stream starts with open")
        header = codec.read_open(message)
        if header.HasField("checksum"):
            self._open_checksum = header.checksum
            header.ClearField("checksum")
        self._call.take_id(header.request_id)
        if header.max_chunk_bytes and header.max_chunk_bytes < LEAST_CHUNK_BYTES:
            raise InvalidFieldError(
                "open.max_chunk_bytes",
                f"{header.max_chunk_bytes}; 0 or at least {LEAST_CHUNK_BYTES} is needed",
            )
        return header

    async def _answer(self, header: v1.Open, prepared: Prepared) -> None:
        digest = await self._service.out_of_turn(lambda: prepared.digest)
        wanted = wanted_bytes(header, prepared, digest)
        assembler = InputAssembler(prepared, resume_from=wanted.start, stop_before=wanted.stop)
        limit = self._service.settings.max_chunk_bytes
        opened = v1.Opened(
            output=codec.write_descriptor(prepared.output),
            read_from_byte=assembler.position,
            read_before_byte=assembler.stop,
            evaluation_digest=digest,
            max_chunk_bytes=limit,
        )
        if self._open_checksum is not None:
            self._opened_checksum = checksums.seal(opened, after=self._open_checksum)
        self._chunk_bytes = min(header.max_chunk_bytes or limit, limit)
        reply = v1.EvaluateStreamResponse(opened=opened)
        await self._responses.put(reply.SerializeToString())
        self._wanted.set_result(assembler)
        left = len(wanted) / max(1, prepared.output.wire_bytes)
        claim = self._call.claim(math.ceil(prepared.work * left), paced=True)
        with self._service.admission.turns(claim) as turns:
            await self._compute_steps(prepared, wanted, turns)
        if self._writer is not None:
            await asyncio.wait({self._writer})

    async def _read_input(self, assembler: InputAssembler) -> None:
        data: codec.Bytes | None = np.empty(0, np.uint8)
        while data is not None:
            for ready in assembler.feed(data):
                await self._steps.put(ready)
            data = await self._next_chunk(assembler)
        if not assembler.complete:
            came = f"half-close after {assembler.position} of {assembler.stop} bytes"
            raise await half_close("chunk", f"{came}; all are needed")
        await self._steps.put(None)

    async def _next_chunk(self, assembler: InputAssembler) -> codec.Bytes | None:
        message = await self._next()
        if message is None:
            return None
        position, total = assembler.position, assembler.stop
        offset, data = codec.read_chunk(message, self._open_checksum)
        limit = self._service.settings.max_chunk_bytes
        if offset != position:
            raise InvalidDataError("chunk.offset", f"{offset}; {position} comes next")
        if not 1 <= len(data) <= limit:
            raise InvalidDataError("chunk.data", f"{len(data)} bytes; 1 to {limit} are taken")
        if position + len(data) > total:
            raise InvalidDataError("chunk.data", f"ends at byte {position + len(data)} of {total}")
        self._call.received_bytes += len(data)
        return data

    async def _compute_steps(self, prepared: Prepared, wanted: range, turns: Turns) -> None:
        execution = Execution(prepared, self._service.backend)
        while (ready := await self._steps.get()) is not None:
            step, data = ready
            offset, stop = prepared.output_range(step)
            result = np.empty(stop - offset, np.uint8)
            self._busy = 1
            execution.backend = self._service.backend
            work, nbytes = partial(execution.step, step, data, result), len(data) + len(result)
            await self._service.compute_step(prepared, self._call, turns, work, nbytes)
            self._busy = 0
            self._progress = self._clock()
            self._call.observer.step(nbytes)
            skipped = max(0, wanted.start - offset)
            part = result[skipped : wanted.stop - offset]
            if len(part):
                await self._responses.put((offset + skipped, part))
        await self._responses.put(None)

    async def _read(self) -> None:
        self._first.set_result(await self._next())
        assembler = await self._wanted
        if assembler is None:
            await self._next()
        else:
            await self._read_input(assembler)

    async def _next(self) -> bytes | None:
        """Return the next message.

        None at the end, and once the stream has failed.
        """
        with self._call.phases.spending("receive"):
            message = await self._context.read()
        while self._failed and message is not grpc.aio.EOF:
            message = await self._context.read()
        self._progress = self._clock()
        return None if message is grpc.aio.EOF else message

    async def _write(self) -> None:
        while (response := await self._responses.get()) is not None:
            if isinstance(response, bytes):
                await self._send(response)
                continue
            offset, data = response
            for first in range(0, len(data), self._chunk_bytes):
                part = data[first : first + self._chunk_bytes]
                await self._send(chunk_frame(offset + first, part.data, self._opened_checksum))
                self._call.sent_bytes += len(part)

    async def _send(self, message: bytes) -> None:
        if self._failed:
            return
        with self._call.phases.spending("send"):
            await self._context.write(message)
        self._progress = self._clock()
