"""Servers with a raw client, and what a refused call must say, by its reason alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from gradwire import v1
from support.every_method import SERVICE, call
from support.many_calls import ManyCall
from support.processes import Command, running_command
from support.raw_calls import PATIENCE_S, Answer, RawClient, float32, identity_request, read_all
from support.refusals import Refusal, check_in_band, check_refusal
from support.serving import ServerThread, serving

BOTH_WAYS = ["Evaluate", "EvaluateStream"]

# The reasons of each status, as their comments in error_reason.proto promise.
_REASONS = {
    grpc.StatusCode.INVALID_ARGUMENT: "INVALID_FIELD INVALID_DATA",
    grpc.StatusCode.UNIMPLEMENTED: "UNKNOWN_FIELD UNKNOWN_OPERATOR",
    grpc.StatusCode.FAILED_PRECONDITION: (
        "USE_STREAM TABLE_TOO_LARGE LAYOUT_NOT_STREAMABLE LIMIT_EXCEEDED"
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: "OVERLOADED OUT_OF_MEMORY",
    grpc.StatusCode.UNAVAILABLE: "STARTING UNKNOWN_SEGMENT DEVICE_LOST DRAINING",
    grpc.StatusCode.DATA_LOSS: "CHECKSUM_MISMATCH",
    grpc.StatusCode.DEADLINE_EXCEEDED: "STALLED DEADLINE_EXCEEDED",
    grpc.StatusCode.ABORTED: "EVALUATION_CHANGED",
    grpc.StatusCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    grpc.StatusCode.PERMISSION_DENIED: "PERMISSION_DENIED",
    grpc.StatusCode.INTERNAL: "INTERNAL",
}
CODES = {reason: code for code, reasons in _REASONS.items() for reason in reasons.split()}


@contextmanager
def served(**settings: Any) -> Generator[tuple[ServerThread, RawClient]]:
    """Run a server with these settings in a thread, and connect to it."""
    with serving(**settings) as server, RawClient(server.address) as client:
        yield server, client


@contextmanager
def served_many(**settings: Any) -> Generator[tuple[ServerThread, RawClient, ManyCall]]:
    with served(**settings) as (server, client), ManyCall(client) as call:
        yield server, client, call


@contextmanager
def commanded(*flags: str, log: Path, **options: Any) -> Generator[tuple[Command, RawClient]]:
    """Run the command as `running_command` does, and connect to it."""
    with (
        running_command(*flags, log=log, **options) as command,
        RawClient(command.address) as client,
    ):
        yield command, client


def refused(
    answer: Answer | Refusal | None,
    reason: str,
    *,
    field: str | None = None,
    in_band: bool = False,
    **metadata: object,
) -> Refusal:
    """Assert that a call was refused for a reason, with its status and these metadata.

    in_band  whether the last message of a stream must say the same
    """
    refusal = answer.refusal if isinstance(answer, Answer) else answer
    checked = check_refusal(refusal, CODES[reason], reason, field=field)
    for name, told in metadata.items():
        assert checked.info.metadata[name] == str(told), checked
    if in_band:
        check_in_band(checked)
    return checked


ended = partial(refused, in_band=True)


def copies(rows: int, columns: int = 0) -> v1.EvaluateRequest:
    """Order copies of one number with 4 bytes, in a square unless columns are given."""
    request = identity_request(rows, columns or rows, data=bytes(4))
    request.input.strides[:] = [0, 0]
    return request


def summed(size: int, *, rows: int = 1) -> v1.EvaluateRequest:
    """Order the work of a square of one number, sent as 4 bytes, for one column of results."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(size, size, strides=(0, 0)))
    request.output.CopyFrom(float32(rows, 1))
    request.operator.dml_resample_grad.CopyFrom(request.operator.dml_resample)
    return request


Silent = Callable[[], Iterator[v1.EvaluateStreamRequest]]


@contextmanager
def silence(messages: Iterable[v1.EvaluateStreamRequest]) -> Generator[Silent]:
    """Give an input of streams that falls silent after its messages, until the block ends."""
    over = threading.Event()

    def silent() -> Iterator[v1.EvaluateStreamRequest]:
        yield from messages
        over.wait(PATIENCE_S)

    try:
        yield silent
    finally:
        over.set()


def send_bytes(client: RawClient, method: str, *messages: bytes) -> Refusal | None:
    """Call a method of the service with these messages; return how it was refused, if it was."""
    if method != "EvaluateStream":
        return call(client.channel, f"{SERVICE}/{method}", messages)[1]
    stream: grpc.StreamStreamMultiCallable[bytes, v1.EvaluateStreamResponse]
    stream = client.channel.stream_stream(
        f"{SERVICE}/{method}", response_deserializer=v1.EvaluateStreamResponse.FromString
    )
    return read_all(stream(iter(messages), timeout=PATIENCE_S)).refusal
