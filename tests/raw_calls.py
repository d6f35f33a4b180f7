"""Calls through the generated stub alone, as a client in any language makes them, without the SDK."""

from __future__ import annotations

import itertools
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2

from gradwire import v1
from serving import ServerThread

DOMAIN = "gradwire.v1"
REQUEST_ID = "a request of the tests"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DETAILS = "grpc-status-details-bin"

# Generous: nothing here is timed, but a test that hangs should end.
PATIENCE_S = 30.0

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
    """Describe a float32 tensor."""
    return v1.TensorDescriptor(
        data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=sizes, strides=strides
    )


def opening(request: v1.EvaluateRequest, **fields: Any) -> v1.EvaluateStreamRequest:
    """Open a stream for what a unary request asks, unknown fields included, and set further fields."""
    header = v1.EvaluateRequest.FromString(request.SerializeToString())
    header.ClearField("data")
    # The two headers have the same numbers.
    opened = v1.Open.FromString(header.SerializeToString())
    opened.MergeFrom(v1.Open(**fields))
    return v1.EvaluateStreamRequest(open=opened)


def chunk(offset: int, data: bytes) -> v1.EvaluateStreamRequest:
    """Make a message that carries bytes."""
    return v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=offset, data=data))


def chunks(data: bytes, size: int, *, start: int = 0) -> Iterator[v1.EvaluateStreamRequest]:
    """Cut the bytes from start on into chunks."""
    for first in range(start, len(data), size):
        yield chunk(first, data[first : first + size])


def as_stream(request: v1.EvaluateRequest) -> list[v1.EvaluateStreamRequest]:
    """Make the messages of a stream that asks what a unary request asks."""
    return [opening(request), *chunks(request.data, max(1, len(request.data)))]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status that is not OK.

    trailers  trailing metadata of text
    details   the metadata `grpc-status-details-bin`; empty where none came
    in_band   the error that a stream ended with
    """

    code: grpc.StatusCode
    message: str
    trailers: Mapping[str, str]
    details: bytes
    in_band: v1.Error | None = None

    @property
    def status(self) -> status_pb2.Status:
        """The details, decoded."""
        return status_pb2.Status.FromString(self.details)

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        """The detail ErrorInfo; an empty one where there is none."""
        return self._detail(error_details_pb2.ErrorInfo())

    @property
    def violations(self) -> list[tuple[str, str]]:
        """Path and description of each field at fault."""
        request = self._detail(error_details_pb2.BadRequest())
        return [(each.field, each.description) for each in request.field_violations]

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of RetryInfo; None where there is none."""
        retry = self._detail(error_details_pb2.RetryInfo())
        given = retry.HasField("retry_delay")
        return retry.retry_delay.ToNanoseconds() / 1e9 if given else None

    @property
    def trailer_bytes(self) -> int:
        """Bytes of message and details as they travel; a message is percent-encoded."""
        return len(urllib.parse.quote(self.message)) + len(self.details)

    def _detail(self, kind: Any) -> Any:
        for detail in self.status.details:
            if detail.Unpack(kind):
                break
        return kind


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


class RawClient:
    """The generated stub on a channel of its own."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=options)
        self.stub = v1.GradientServiceStub(self.channel)

    def evaluate(
        self,
        request: v1.EvaluateRequest,
        *,
        timeout_s: float = PATIENCE_S,
        traceparent: str = TRACEPARENT,
    ) -> Answer:
        """Call Evaluate."""
        metadata = (("traceparent", traceparent),)
        try:
            reply, call = self.stub.Evaluate.with_call(
                request, timeout=timeout_s, metadata=metadata
            )
        except grpc.RpcError as error:
            refusal = refusal_of(error)
            return Answer(b"", v1.TensorDescriptor(), refusal.trailers, refusal)
        assert reply.request_id == _trailers(call)["gradwire-request-id"]
        return Answer(reply.data, reply.output, _trailers(call))

    def start(
        self,
        messages: Iterable[v1.EvaluateStreamRequest],
        *,
        timeout_s: float | None = PATIENCE_S,
        traceparent: str = TRACEPARENT,
    ) -> grpc.CallIterator[v1.EvaluateStreamResponse]:
        """Call EvaluateStream; nothing is read until the caller iterates."""
        metadata = (("traceparent", traceparent),)
        return self.stub.EvaluateStream(iter(messages), timeout=timeout_s, metadata=metadata)

    def stream(
        self, messages: Iterable[v1.EvaluateStreamRequest], *, timeout_s: float | None = PATIENCE_S
    ) -> Answer:
        """Call EvaluateStream and read it to its end."""
        return read_all(self.start(messages, timeout_s=timeout_s))

    def ask(self, request: v1.EvaluateRequest, how: str) -> Answer:
        """Call Evaluate or EvaluateStream with the same request."""
        return self.evaluate(request) if how == "Evaluate" else self.stream(as_stream(request))

    def check_alive(self) -> None:
        """Have the published example evaluated both ways."""
        for answer in (
            self.evaluate(published_request()),
            self.stream(as_stream(published_request())),
        ):
            assert answer.refusal is None
            assert answer.data == PUBLISHED_RESULT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def read_all(call: grpc.CallIterator[v1.EvaluateStreamResponse]) -> Answer:
    """Read a stream to its end, whatever that is, and check the order of its messages."""
    opened: v1.Opened | None = None
    data: list[bytes] = []
    places: list[tuple[int, int]] = []
    in_band: v1.Error | None = None
    refusal: Refusal | None = None
    try:
        for number in itertools.count():
            message = next(call, None)
            if message is None:
                break
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
    return Answer(b"".join(data), output, _trailers(call), refusal, opened, tuple(places))


def refusal_of(error: object, in_band: v1.Error | None = None) -> Refusal:
    """Collect what a failed call says."""
    call = cast("grpc.Call", error)
    details = b""
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS:
            assert isinstance(value, bytes)
            details = value
    return Refusal(call.code(), call.details() or "", _trailers(call), details, in_band)


def _trailers(call: object) -> dict[str, str]:
    pairs = cast("grpc.Call", call).trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def check_refusal(
    refusal: Refusal | None, code: grpc.StatusCode, reason: str, *, field: str | None = None
) -> Refusal:
    """Assert that a call was refused in this way, and in every point as any refusal must be."""
    assert refusal is not None, "the call was answered"
    said = (refusal.code, refusal.info.reason, refusal.message)
    assert (refusal.code, refusal.info.reason) == (code, reason), said
    assert refusal.info.domain == DOMAIN
    assert refusal.message
    assert refusal.message.isprintable()
    status = refusal.status
    assert (status.code, status.message) == (code.value[0], refusal.message)
    assert [path for path, _ in refusal.violations] == ([] if field is None else [field]), said
    assert field is None or refusal.message.startswith(f"{field}: ")
    assert (refusal.retry_after_s is not None) == (reason == "OVERLOADED")
    for key, trailer in (
        ("request_id", "gradwire-request-id"),
        ("traceparent", "traceparent"),
    ):
        assert refusal.info.metadata[key] == refusal.trailers[trailer] != ""
    assert refusal.trailer_bytes < 4096
    return refusal


def check_in_band(refusal: Refusal) -> None:
    """Assert that a stream said in its last message just what its status says."""
    error = refusal.in_band
    assert error is not None, "no error came in-band"
    assert error.code == refusal.code.value[0]
    assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{refusal.info.reason}"
    assert error.message == refusal.message
    assert dict(error.metadata) == dict(refusal.info.metadata)
    fields = [(each.field, each.description) for each in error.field_violations]
    assert fields == refusal.violations
    retry = error.retry_after.ToNanoseconds() / 1e9 if error.HasField("retry_after") else None
    assert retry == refusal.retry_after_s


def wait_until(holds: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds; fail if it never does."""
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.005)


def wait_idle(server: ServerThread) -> None:
    """Wait until a server holds no stream and no memory for any call."""
    admission = server.server.workshop.admission
    wait_until(lambda: (admission.streams, admission.memory_bytes) == (0, 0))
