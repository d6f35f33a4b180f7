"""Calls through the generated stub alone, as clients in other languages make them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import grpc
import numpy as np

from gradwire import v1
from support.refusals import Refusal, refusal_of, trailers_of
from support.serving import ServerThread

REQUEST_ID = "a request of the tests"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Generous: nothing here is timed, but a test that hangs should end.
PATIENCE_S = 30.0

# A channel of its own, for messages of any size.
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]

PUBLISHED_GRADIENT = np.array([[4, 5, 6]], "<f4").tobytes()
PUBLISHED_RESULT = np.array([[9, 6], [0, 0]], "<f4").tobytes()


def published_request() -> v1.EvaluateRequest:
    """Ask for the example that DirectML's page on ResampleGrad publishes."""
    return v1.EvaluateRequest(
        request_id=REQUEST_ID,
        operator=v1.Operator(
            dml_resample_grad=v1.DmlResample(
                interpolation_mode=v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR,
                scales=(0.5, 1.5),
            )
        ),
        input=float32(1, 3),
        output=float32(2, 2),
        data=PUBLISHED_GRADIENT,
    )


def wrong_request() -> v1.EvaluateRequest:
    """Ask for a tensor of a negative size."""
    request = published_request()
    request.input.sizes[0] = -1
    return request


def identity_request(*sizes: int, data: bytes = b"") -> v1.EvaluateRequest:
    """Ask for an operator that hands its float32 input on as it is."""
    mode = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_LINEAR
    return v1.EvaluateRequest(
        request_id=REQUEST_ID,
        operator=v1.Operator(dml_resample=v1.DmlResample(interpolation_mode=mode)),
        input=float32(*sizes),
        output=float32(*sizes),
        data=data,
    )


def float32(*sizes: int, strides: tuple[int, ...] = ()) -> v1.TensorDescriptor:
    return v1.TensorDescriptor(
        data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=sizes, strides=strides
    )


def opening(request: v1.EvaluateRequest, **fields: Any) -> v1.EvaluateStreamRequest:
    """Open a stream for what a unary request asks, unknown fields too; set further fields."""
    header = v1.EvaluateRequest.FromString(request.SerializeToString())
    header.ClearField("data")
    # The two headers have the same numbers.
    opened = v1.Open.FromString(header.SerializeToString())
    opened.MergeFrom(v1.Open(**fields))
    return v1.EvaluateStreamRequest(open=opened)


def chunk(offset: int, data: bytes) -> v1.EvaluateStreamRequest:
    return v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=offset, data=data))


def chunks(data: bytes, size: int, *, start: int = 0) -> Iterator[v1.EvaluateStreamRequest]:
    for first in range(start, len(data), size):
        yield chunk(first, data[first : first + size])


def as_stream(request: v1.EvaluateRequest) -> list[v1.EvaluateStreamRequest]:
    return [opening(request), *chunks(request.data, max(1, len(request.data)))]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call brought.

    data      the result's bytes, joined
    chunks    offset and length of each chunk of a stream
    refusal   how it failed; None where it succeeded
    """

    data: bytes
    output: v1.TensorDescriptor
    trailers: Mapping[str, str]
    refusal: Refusal | None = None
    opened: v1.Opened | None = None
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK if self.refusal is None else self.refusal.code


class StreamCall(Protocol):
    """A running EvaluateStream, as grpc has it."""

    def __iter__(self) -> Iterator[v1.EvaluateStreamResponse]: ...
    def __next__(self) -> v1.EvaluateStreamResponse: ...
    def cancel(self) -> bool: ...
    def is_active(self) -> bool: ...
    def code(self) -> grpc.StatusCode: ...


class RawClient:
    """The generated stub on a channel of its own."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
        self.stub = v1.GradientServiceStub(self.channel)

    def evaluate(
        self,
        request: v1.EvaluateRequest,
        *,
        timeout_s: float = PATIENCE_S,
        traceparent: str = TRACEPARENT,
    ) -> Answer:
        metadata = (("traceparent", traceparent),)
        try:
            reply, call = self.stub.Evaluate.with_call(
                request, timeout=timeout_s, metadata=metadata
            )
        except grpc.RpcError as error:
            refusal = refusal_of(error)
            return Answer(b"", v1.TensorDescriptor(), refusal.trailers, refusal)
        assert reply.request_id == trailers_of(call)["gradwire-request-id"]
        return Answer(reply.data, reply.output, trailers_of(call))

    def start(
        self,
        messages: Iterable[v1.EvaluateStreamRequest],
        *,
        timeout_s: float | None = PATIENCE_S,
        traceparent: str = TRACEPARENT,
    ) -> StreamCall:
        """Call EvaluateStream; nothing is read until the caller iterates."""
        metadata = (("traceparent", traceparent),)
        return self.stub.EvaluateStream(iter(messages), timeout=timeout_s, metadata=metadata)

    def stream(
        self, messages: Iterable[v1.EvaluateStreamRequest], *, timeout_s: float | None = PATIENCE_S
    ) -> Answer:
        return read_all(self.start(messages, timeout_s=timeout_s))

    def ask(
        self, request: v1.EvaluateRequest, how: str, *, timeout_s: float = PATIENCE_S
    ) -> Answer:
        if how == "Evaluate":
            return self.evaluate(request, timeout_s=timeout_s)
        return self.stream(as_stream(request), timeout_s=timeout_s)

    def check_alive(self) -> None:
        """Have the published example evaluated both ways."""
        for answer in (
            self.evaluate(published_request()),
            self.stream(as_stream(published_request())),
        ):
            assert answer.refusal is None, answer.refusal
            assert answer.data == PUBLISHED_RESULT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def read_all(
    call: StreamCall, messages: Iterable[v1.EvaluateStreamResponse] | None = None
) -> Answer:
    """Read a stream to its end, whatever that is, and check the order of its messages.

    messages  what is read: the call, unless something stands between
    """
    opened: v1.Opened | None = None
    data: list[bytes] = []
    places: list[tuple[int, int]] = []
    in_band: v1.Error | None = None
    refusal: Refusal | None = None
    try:
        for number, message in enumerate(call if messages is None else messages):
            assert in_band is None, "an error is the last message"
            came = message.WhichOneof("message")
            assert (came == "opened") == (number == 0 and came != "error")
            if came == "opened":
                opened = message.opened
            elif came == "chunk":
                data.append(message.chunk.data)
                places.append((message.chunk.offset, len(message.chunk.data)))
            else:
                in_band = message.error
    except grpc.RpcError as error:
        refusal = refusal_of(error, in_band)
    assert refusal is not None or in_band is None
    output = v1.TensorDescriptor() if opened is None else opened.output
    return Answer(b"".join(data), output, trailers_of(call), refusal, opened, tuple(places))


def wait_until(holds: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.005)


def wait_idle(server: ServerThread) -> None:
    """Wait until a server holds no stream and no memory for any call."""
    admission = server.server.service.admission
    wait_until(lambda: (admission.streams, admission.memory_bytes) == (0, 0))
