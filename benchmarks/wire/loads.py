"""Clients of the wire benchmark, and one sample of their calls."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.servers import Server, own_cpu_s
from gradwire import Client, ops, tensors, v1
from gradwire._wire.framing import chunk_frame, read_chunk
from gradwire._wire.requests import prepare

OPERATOR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
EVALUATE = "/gradwire.v1.GradientService/Evaluate"
EVALUATE_STREAM = "/gradwire.v1.GradientService/EvaluateStream"

Array = NDArray[Any]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of calls for a while.

    rate            calls per second
    p50_ms, p99_ms  of their latencies
    server_ms       processor time of the server's process for each call
    client_ms       the same of this process
    """

    rate: float
    p50_ms: float
    p99_ms: float
    server_ms: float
    client_ms: float


class _Meter:
    """Measures from its construction until `sample` is called."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self._server_s, self._client_s = self._cpu_s()
        self._started = time.perf_counter()
        self.times: list[float] = []

    def _cpu_s(self) -> tuple[float, float]:
        return (0.0 if self._server is None else self._server.cpu_s()), own_cpu_s()

    def sample(self) -> Sample:
        seconds = time.perf_counter() - self._started
        server_s, client_s = self._cpu_s()
        count = len(self.times)
        ordered = sorted(self.times)
        return Sample(
            rate=count / seconds,
            p50_ms=1e3 * statistics.median(ordered),
            p99_ms=1e3 * ordered[min(count - 1, count * 99 // 100)],
            server_ms=1e3 * (server_s - self._server_s) / count,
            client_ms=1e3 * (client_s - self._client_s) / count,
        )


def one_by_one(call: Call, server: Server | None, *, seconds: float) -> Sample:
    """Call again and again, in this thread."""
    call()
    meter = _Meter(server)
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        call()
        meter.times.append(time.perf_counter() - started)
    return meter.sample()


def many_at_once(
    server: Server, request: bytes, *, connections: int, in_flight: int, seconds: float
) -> Sample:
    """Keep so many unary calls of the same bytes in flight.

    They use so many connections.
    """
    return asyncio.run(_flood(server, request, connections, in_flight, seconds))


async def _flood(
    server: Server, request: bytes, connections: int, in_flight: int, seconds: float
) -> Sample:
    channels = [
        grpc.aio.insecure_channel(server.address, options=_OPTIONS) for _ in range(connections)
    ]
    calls = [_bytes_method(channel) for channel in channels]
    await asyncio.gather(*(call(request) for call in calls * 8))
    meter = _Meter(server)
    until = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        call = calls[number % connections]
        while (started := time.perf_counter()) < until:
            await call(request)
            meter.times.append(time.perf_counter() - started)

    await asyncio.gather(*map(caller, range(in_flight)))
    sample = meter.sample()
    for channel in channels:
        await channel.close()
    return sample


def _bytes_method(channel: Any) -> Any:
    return channel.unary_unary(EVALUATE)


_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


def channel_to(address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """Open a connection of its own."""
    return grpc.insecure_channel(address, options=[*_OPTIONS, *options])


def method_of(address: str, name: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
    """Return a method of bytes, over a connection of its own."""
    channel: Any = channel_to(address, options)
    return (channel.unary_unary if name == EVALUATE else channel.stream_stream)(name)


def request_for(source: Array, output_shape: tuple[int, ...]) -> bytes:
    """Return the bytes of an EvaluateRequest."""
    return prepare(OPERATOR, source, output_shape=output_shape, out=None).unary_request()[0]


def unary_bytes(server: Server, request: bytes) -> Call:
    """Send the same bytes each time, as a client without protobuf does."""
    return partial(method_of(server.address, EVALUATE), request)


def sdk(server: Server, source: Array, output_shape: tuple[int, ...], **options: Any) -> Call:
    """Evaluate through the SDK."""
    client = Client(server.address, **options)
    return partial(client.evaluate, OPERATOR, source, output_shape=output_shape)


def protobuf(server: Server, source: Array, output_shape: tuple[int, ...]) -> Call:
    """Evaluate through the generated stub, as a plain client does."""
    stub = v1.GradientServiceStub(channel_to(server.address))
    described = tensors.describe(source)
    result = tensors.result_descriptor(described, output_shape)

    def call() -> Array:
        request = v1.EvaluateRequest(
            operator=ops.to_message(OPERATOR),
            input=described,
            output=result,
            data=source.tobytes(),
        )
        return np.frombuffer(stub.Evaluate(request).data, source.dtype).reshape(output_shape)

    return call


def raw_stream(
    server: Server, source: Array, chunk_bytes: int, options: Sequence[tuple[str, Any]] = ()
) -> Call:
    """Stream a tensor's bytes in raw chunks; store the reply.

    The reply has as many bytes.
    """
    method = method_of(server.address, EVALUATE_STREAM, options)
    data = source.reshape(-1).view(np.uint8).data

    def call() -> Array:
        out = np.empty_like(source)
        stored, place = out.reshape(-1).view(np.uint8), 0
        chunks = (bytes(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes))
        for message in method(chunks):
            stored[place : place + len(message)] = np.frombuffer(message, np.uint8)
            place += len(message)
        assert place == len(data)
        return out

    return call


def framed_stream(server: Server, source: Array, chunk_bytes: int) -> Call:
    """Stream as `raw_stream`, with the messages of EvaluateStream.

    It does as little as possible besides.
    """
    method = method_of(server.address, EVALUATE_STREAM)
    data = source.reshape(-1).view(np.uint8).data
    described = tensors.describe(source)
    header = v1.Open(operator=ops.to_message(OPERATOR), input=described, output=described)
    opening = v1.EvaluateStreamRequest(open=header).SerializeToString()

    def call() -> Array:
        out = np.empty_like(source)
        stored, place = out.reshape(-1).view(np.uint8), 0

        def messages() -> Any:
            yield opening
            for at in range(0, len(data), chunk_bytes):
                yield chunk_frame(at, data[at : at + chunk_bytes])

        for message in method(messages()):
            if (chunk := read_chunk(message)) is not None:
                at, part = chunk
                place = at + len(part)
                stored[at:place] = np.frombuffer(part, np.uint8)
        assert place == len(data)
        return out

    return call


def protobuf_stream(
    server: Server, source: Array, output_shape: tuple[int, ...], chunk_bytes: int, *, opens: bool
) -> Call:
    """Stream through the generated stub, as a plain client does.

    opens tells whether the first message describes the evaluation; otherwise the server returns the
    same bytes.
    """
    stub = v1.GradientServiceStub(channel_to(server.address))
    data = source.reshape(-1).view(np.uint8).data
    described = tensors.describe(source)
    result = tensors.result_descriptor(described, output_shape)
    header = v1.Open(operator=ops.to_message(OPERATOR), input=described, output=result)

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        if opens:
            yield v1.EvaluateStreamRequest(open=header)
        for at in range(0, len(data), chunk_bytes):
            chunk = v1.Chunk(offset=at, data=bytes(data[at : at + chunk_bytes]))
            yield v1.EvaluateStreamRequest(chunk=chunk)

    def call() -> Array:
        out = np.empty(output_shape, source.dtype)
        stored, place = out.reshape(-1).view(np.uint8), 0
        for message in stub.EvaluateStream(messages()):
            part = message.chunk.data
            stored[place : place + len(part)] = np.frombuffer(part, np.uint8)
            place += len(part)
        assert place == stored.size
        return out

    return call
