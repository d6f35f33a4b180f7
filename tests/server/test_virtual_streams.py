"""Streams without sockets, on a virtual clock: order, memory, stalls and the end of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import v1
from gradwire_server.engine import at_once
from gradwire_server.rpc import codec
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.stream import EvaluationStream
from support import virtual_calls
from support.raw_calls import chunk, float32, identity_request, opening
from support.virtual_calls import VirtualCall

ROWS, COLUMNS = 64, 8
STALL_S = 20.0
READ, _WRITE = codec.EVALUATE_STREAM


def encoded(messages: Iterable[v1.EvaluateStreamRequest]) -> list[Any]:
    """Return messages as grpc hands them to the handler."""
    assert READ is not None
    return [READ(message.SerializeToString()) for message in messages]


def halving() -> v1.EvaluateRequest:
    """Ask for the gradient of a bilinear enlargement of 32 rows to 64."""
    interpolate = v1.Interpolate(
        mode=v1.Interpolate.MODE_BILINEAR, data_format=v1.Interpolate.DATA_FORMAT_NCX
    )
    request = v1.EvaluateRequest(
        operator=v1.Operator(interpolate_backward=interpolate),
        input=float32(1, 1, ROWS, COLUMNS),
        output=float32(1, 1, ROWS // 2, COLUMNS),
    )
    request.data = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32).tobytes()
    return request


def began(service: ServiceContext, call: VirtualCall) -> asyncio.Task[None]:
    context: Any = call
    return asyncio.ensure_future(EvaluationStream.serve(service, None, context))


def message(answer: Any) -> v1.EvaluateStreamResponse:
    data = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return v1.EvaluateStreamResponse.FromString(data)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1), st.integers(1, 4), st.sampled_from((512, 1024, 4096))
)
def test_any_chunks_give_the_bits_of_the_whole(
    lengths: list[int], most: int, slab_bytes: int
) -> None:
    async def scene() -> None:
        service = virtual_calls.service(slab_bytes=slab_bytes)
        request = halving()
        prepared = service.preparer.prepare(codec.read_request(request))
        expected = at_once(prepared, request.data, service.backend).tobytes()
        call = VirtualCall(most=most)
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        assert message(await call.receive()).WhichOneof("message") == "opened"
        at = number = 0
        while at < len(request.data):
            stop = at + 4 * lengths[number % len(lengths)]
            call.send(*encoded([chunk(at, request.data[at:stop])]))
            at, number = min(stop, len(request.data)), number + 1
        call.half_close()
        result = bytearray()
        while len(result) < len(expected):
            part = message(await call.receive()).chunk
            assert part.offset == len(result)
            result += part.data
        await serving
        assert bytes(result) == expected
        assert call.code is None
        admission = service.admission
        assert (admission.memory_bytes, admission.streams) == (0, 0)

    virtual_calls.run(scene())


def test_a_caller_that_does_not_read_is_read_no_further() -> None:
    async def scene() -> None:
        service = virtual_calls.service(stall_timeout_s=STALL_S)
        request = identity_request(1 << 10)
        call = VirtualCall()
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        assert message(await call.receive()).opened.read_before_byte == 4 << 10
        call.send(*encoded(chunk(at, bytes(64)) for at in range(0, 4 << 10, 64)))
        await asyncio.sleep(STALL_S / 2)
        # The first message, and a chunk in each place: written, waiting twice, and just read.
        assert call.reads <= 6
        for _ in range(64):
            await call.receive()
        call.half_close()
        await serving
        assert call.code is None

    virtual_calls.run(scene())


def test_a_stream_without_progress_ends_after_the_stall_timeout() -> None:
    async def scene() -> None:
        service = virtual_calls.service(stall_timeout_s=STALL_S)
        loop = asyncio.get_running_loop()
        for sent in ([], [opening(halving())], [opening(halving()), chunk(0, bytes(1024))]):
            call = VirtualCall(most=100)
            call.send(*encoded(sent))
            start = loop.time()
            await began(service, call)
            assert STALL_S <= loop.time() - start < STALL_S + 1
            assert call.code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "GRADWIRE_STALL_TIMEOUT_S" in call.details
            assert service.admission.memory_bytes == 0

    virtual_calls.run(scene())


def test_each_message_renews_the_stall_timeout() -> None:
    async def scene() -> None:
        service = virtual_calls.service(stall_timeout_s=STALL_S)
        request = halving()
        call = VirtualCall(most=100)
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        for at in range(0, len(request.data), 256):
            await asyncio.sleep(0.9 * STALL_S)
            call.send(*encoded([chunk(at, request.data[at : at + 256])]))
        call.half_close()
        await serving
        assert call.code is None

    virtual_calls.run(scene())
