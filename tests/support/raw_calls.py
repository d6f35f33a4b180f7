"""Calls through the generated stub alone, as clients in other languages make them, and refusals."""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2

from gradwire import v1

REQUEST_ID = "a request of the tests"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Generous: nothing here is timed, but a test that hangs should end.
PATIENCE_S = 120.0

# A channel of its own, for messages of any size.
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]

PUBLISHED_GRADIENT = np.array([[4, 5, 6]], "<f4").tobytes()
PUBLISHED_RESULT = np.array([[9, 6], [0, 0]], "<f4").tobytes()


def parsed(kind: type[Any], data: bytes) -> Any:
    """Return what protobuf makes of bytes; None where it refuses them."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


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


def unfinished() -> list[v1.EvaluateStreamRequest]:
    """Open a stream of 4 MiB and send 3 of them."""
    data = bytes(1 << 20)
    return [opening(identity_request(1 << 20)), *(chunk(each << 20, data) for each in range(3))]


def chunks(data: bytes, size: int, *, start: int = 0) -> Iterator[v1.EvaluateStreamRequest]:
    for first in range(start, len(data), size):
        yield chunk(first, data[first : first + size])


def as_stream(request: v1.EvaluateRequest) -> list[v1.EvaluateStreamRequest]:
    return [opening(request), *chunks(request.data, max(1, len(request.data)))]


M = TypeVar("M", bound=Message)


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
        return status_pb2.Status.FromString(self.details)

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        return self._detail(error_details_pb2.ErrorInfo())

    @property
    def violations(self) -> list[tuple[str, str]]:
        request = self._detail(error_details_pb2.BadRequest())
        return [(each.field, each.description) for each in request.field_violations]

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of RetryInfo; None where there is none."""
        retry = self._detail(error_details_pb2.RetryInfo())
        given = retry.HasField("retry_delay")
        return retry.retry_delay.ToNanoseconds() / 1e9 if given else None

    def _detail(self, kind: M) -> M:
        for detail in self.status.details:
            if detail.Unpack(kind):
                break
        return kind


def refusal_of(error: object, in_band: v1.Error | None = None) -> Refusal:
    call: Any = error
    metadata: Any = call.trailing_metadata() or ()
    details = next((value for key, value in metadata if key == "grpc-status-details-bin"), b"")
    return Refusal(call.code(), call.details() or "", trailers_of(call), details, in_band)


def trailers_of(call: Any) -> dict[str, str]:
    pairs = call.trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}


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


class RawClient:
    """The generated stub on a channel of its own."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        secure = () if credentials is None else (credentials,)
        open_channel: Any = grpc.secure_channel if secure else grpc.insecure_channel
        self.channel: grpc.Channel = open_channel(address, *secure, options=CHANNEL_OPTIONS)
        self.stub = v1.GradientServiceStub(self.channel)

    def evaluate(
        self,
        request: v1.EvaluateRequest,
        *,
        timeout_s: float = PATIENCE_S,
        traceparent: str = TRACEPARENT,
    ) -> Answer:
        options: Any = {"timeout": timeout_s, "metadata": (("traceparent", traceparent),)}
        try:
            reply, call = self.stub.Evaluate.with_call(request, **options)
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
    ) -> Any:
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
        for how in BOTH_WAYS:
            answer = self.ask(published_request(), how)
            assert (answer.refusal, answer.data) == (None, PUBLISHED_RESULT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def read_all(call: Any, messages: Iterable[v1.EvaluateStreamResponse] | None = None) -> Answer:
    """Read a stream to its end, whatever that is, and check the order of its messages.

    messages  what is read: the call, unless something stands between
    """
    opened: v1.Opened | None = None
    parts: list[tuple[int, bytes]] = []
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
                parts.append((message.chunk.offset, message.chunk.data))
            else:
                in_band = message.error
    except grpc.RpcError as error:
        refusal = refusal_of(error, in_band)
    assert refusal is not None or in_band is None
    output = v1.TensorDescriptor() if opened is None else opened.output
    data = b"".join(part for _, part in parts)
    places = tuple((offset, len(part)) for offset, part in parts)
    return Answer(data, output, trailers_of(call), refusal, opened, places)


def wait_until(holds: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.005)


def named(request: v1.EvaluateRequest, name: str) -> v1.EvaluateManyRequest:
    evaluation = v1.EvaluateRequest.FromString(request.SerializeToString())
    evaluation.request_id = name
    return v1.EvaluateManyRequest(evaluation=evaluation)


def rows(length: int) -> v1.EvaluateRequest:
    """Halve an axis of float32 numbers."""
    request = identity_request(2 * length, data=bytes(8 * length))
    request.output.CopyFrom(float32(length))
    return request


class ManyCall:
    """A running EvaluateMany; what is sent and when it ends is up to the test.

    answered  requests answered until now
    """

    def __init__(
        self, client: RawClient, *, timeout_s: float | None = PATIENCE_S, method: Any = None
    ) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._in_band: v1.Error | None = None
        self.answered = 0
        metadata = (("traceparent", TRACEPARENT),)
        self.call: Any = (method or client.stub.EvaluateMany)(
            iter(self._requests.get, None), timeout=timeout_s, metadata=metadata
        )

    def send(self, *requests: v1.EvaluateManyRequest | bytes) -> None:
        for request in requests:
            self._requests.put(request)

    @classmethod
    def of_bytes(cls, client: RawClient, *messages: bytes) -> Self:
        """Send these bytes as messages, then half-close."""
        self = cls(client, method=_method(client, "EvaluateMany", v1.EvaluateManyResponse))
        self.send(*messages)
        self.half_close()
        return self

    def half_close(self) -> None:
        self._requests.put(None)

    def __iter__(self) -> Iterator[v1.EvaluateManyResponse]:
        """Yield the answers there are until the stream ends with OK."""
        for response in self.call:
            assert self._in_band is None, "an error without a name is the last message"
            if response.request_id:
                if response.WhichOneof("outcome") == "result":
                    assert response.result.request_id == response.request_id
                self.answered += 1
                yield response
            else:
                self._in_band = response.error

    def receive(self) -> v1.EvaluateManyResponse:
        return next(iter(self))

    def answers(self) -> dict[str, v1.EvaluateManyResponse]:
        """Half-close, and return every answer still to come by its name, in their order."""
        self.half_close()
        return {each.request_id: each for each in self}

    def refusal(self) -> Refusal:
        """Read to the end, and return how the stream was refused."""
        try:
            for _ in self:
                pass
        except grpc.RpcError as error:
            return refusal_of(error, self._in_band)
        raise AssertionError("the stream ended with OK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self.half_close()


class WaitingStream:
    """A stream of the published request that has its answer to `open`, and sends its data later.

    early   bytes of the data that are sent at once
    call    as grpc has it
    opened  what came first
    """

    def __init__(
        self, client: RawClient, request: v1.EvaluateRequest | None = None, *, early: int = 0
    ) -> None:
        self._go = threading.Event()
        self.call = client.start(self._messages(request or published_request(), early))
        self.opened: v1.EvaluateStreamResponse = next(self.call)

    def _messages(
        self, request: v1.EvaluateRequest, early: int
    ) -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(request)
        yield from [chunk(0, request.data[:early])] if early else []
        self._go.wait(PATIENCE_S)
        yield chunk(early, request.data[early:])

    def send(self) -> None:
        """Send the data; nothing comes of it where the call has ended."""
        self._go.set()

    def finish(self) -> None:
        self.send()
        assert b"".join(each.chunk.data for each in self.call) == PUBLISHED_RESULT
        assert self.call.code() is grpc.StatusCode.OK

    def cancel(self) -> None:
        self.call.cancel()
        self.send()


SERVICE = "/gradwire.v1.GradientService"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"
UNKNOWN = f"{SERVICE}/Unheard"
# Answers only callers who have registered memory.
SHARED = f"{SERVICE}/EvaluateShared"

# Messages of a call of each method; those that a scope opens, by its name.
REQUESTS: Mapping[str, Mapping[str, tuple[bytes, ...]]] = {
    "evaluate": {
        f"{SERVICE}/Evaluate": (published_request().SerializeToString(),),
        f"{SERVICE}/EvaluateStream": tuple(
            each.SerializeToString() for each in as_stream(published_request())
        ),
        f"{SERVICE}/EvaluateMany": (named(published_request(), REQUEST_ID).SerializeToString(),),
        f"{SERVICE}/ListOperators": (b"",),
    },
    "inspect": {
        f"{SERVICE}/GetServerInfo": (b"",),
        REFLECTION: (reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),),
    },
}
EVERY = {name: messages for methods in REQUESTS.values() for name, messages in methods.items()}


def call(
    channel: grpc.Channel,
    method: str,
    messages: Iterable[bytes],
    *metadata: tuple[str, str],
    timeout_s: float = PATIENCE_S,
) -> tuple[list[bytes], Refusal | None]:
    """Call a method, streaming or not; return its replies and how it failed, if it did."""
    replies: list[bytes] = []
    untyped: Any = channel
    try:
        replies.extend(
            untyped.stream_stream(method)(iter(messages), metadata=metadata, timeout=timeout_s)
        )
    except grpc.RpcError as error:
        return replies, refusal_of(error)
    return replies, None


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


BOTH_WAYS = ["Evaluate", "EvaluateStream"]

# The reasons of each status, as their comments in error_reason.proto promise.
_REASONS = {
    "INVALID_ARGUMENT": "INVALID_FIELD INVALID_DATA",
    "UNIMPLEMENTED": "UNKNOWN_FIELD UNKNOWN_OPERATOR",
    "FAILED_PRECONDITION": "USE_STREAM TABLE_TOO_LARGE LAYOUT_NOT_STREAMABLE LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED": "OVERLOADED OUT_OF_MEMORY",
    "UNAVAILABLE": "STARTING UNKNOWN_SEGMENT DEVICE_LOST DRAINING",
    "DATA_LOSS": "CHECKSUM_MISMATCH",
    "DEADLINE_EXCEEDED": "STALLED DEADLINE_EXCEEDED",
    "ABORTED": "EVALUATION_CHANGED",
    **{same: same for same in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL")},
}
CODES = {
    reason: grpc.StatusCode[code] for code, told in _REASONS.items() for reason in told.split()
}


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


def refused(
    answer: Answer | Refusal | None,
    reason: str,
    *,
    field: str | None = None,
    in_band: bool = False,
    **metadata: object,
) -> Refusal:
    """Assert that a call was refused for a reason, and in every point as any refusal must be.

    in_band  whether the last message of a stream must say the same
    """
    refusal = answer.refusal if isinstance(answer, Answer) else answer
    assert refusal is not None, "the call was answered"
    code, info, status = CODES[reason], refusal.info, refusal.status
    said = (refusal.code, info.reason, refusal.message)
    assert said[:2] == (code, reason), said
    assert info.domain == "gradwire.v1"
    assert refusal.message
    assert refusal.message.isprintable()
    assert (status.code, status.message) == (code.value[0], refusal.message)
    assert [path for path, _ in refusal.violations] == ([] if field is None else [field]), said
    assert field is None or refusal.message.startswith(f"{field}: ")
    later = reason in {"OVERLOADED", "STARTING", "DEVICE_LOST"}
    assert (refusal.retry_after_s is not None) == later
    for key, trailer in (("request_id", "gradwire-request-id"), ("traceparent", "traceparent")):
        assert info.metadata[key] == refusal.trailers[trailer] != ""
    # As they travel: a message is percent-encoded.
    assert len(urllib.parse.quote(refusal.message)) + len(refusal.details) < 4096
    for name, told in metadata.items():
        assert info.metadata[name] == str(told), refusal
    if in_band:
        check_in_band(refusal)
    return refusal


ended = partial(refused, in_band=True)


def told(refusal: Refusal | None, reason: str) -> v1.Error:
    """Assert that the last message told a reason, whatever became of the trailers behind it."""
    assert refusal is not None
    error = refusal.in_band
    assert error is not None
    assert error.code == CODES[reason].value[0]
    assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{reason}"
    assert error.metadata["request_id"] == REQUEST_ID
    return error


def copies(rows: int, columns: int = 0) -> v1.EvaluateRequest:
    """Order copies of one number with 4 bytes, in a square unless columns are given."""
    request = identity_request(rows, columns or rows, data=bytes(4))
    request.input.strides[:] = [0, 0]
    return request


def summed(size: int, *, rows: int = 1, columns: int = 1) -> v1.EvaluateRequest:
    """Order the work of a square of one number, sent as 4 bytes, for few results."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(size, size, strides=(0, 0)))
    request.output.CopyFrom(float32(rows, columns))
    request.operator.dml_resample_grad.CopyFrom(request.operator.dml_resample)
    return request


@contextmanager
def silence(
    messages: Iterable[v1.EvaluateStreamRequest],
) -> Generator[Callable[[], Iterator[v1.EvaluateStreamRequest]]]:
    """Give an input of streams that falls silent after its messages, until the block ends."""
    over = threading.Event()

    def silent() -> Iterator[v1.EvaluateStreamRequest]:
        yield from messages
        over.wait(PATIENCE_S)

    try:
        yield silent
    finally:
        over.set()


def _method(client: RawClient, name: str, answer: Any) -> Any:
    """Return a method of the service that takes messages as bytes."""
    untyped: Any = client.channel
    return untyped.stream_stream(f"{SERVICE}/{name}", response_deserializer=answer.FromString)


def stream_bytes(client: RawClient, messages: Iterable[bytes]) -> Answer:
    """Call EvaluateStream with these messages."""
    method = _method(client, "EvaluateStream", v1.EvaluateStreamResponse)
    return read_all(method(iter(messages), timeout=PATIENCE_S))


def send_bytes(client: RawClient, method: str, *messages: bytes) -> Refusal | None:
    """Call a method of the service with these messages; return how it was refused, if it was."""
    if method == "EvaluateStream":
        return stream_bytes(client, messages).refusal
    return call(client.channel, f"{SERVICE}/{method}", messages)[1]
