"""Every RPC that a server answers, called as any client can: with bytes and metadata."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from gradwire import v1
from support.raw_calls import PATIENCE_S, as_stream, published_request
from support.refusals import Refusal, refusal_of

SERVICE = "/gradwire.v1.GradientService"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"
UNKNOWN = f"{SERVICE}/Unheard"
# Answers only callers who have registered memory.
SHARED = f"{SERVICE}/EvaluateShared"

_many = v1.EvaluateManyRequest(evaluation=published_request())
# Messages of a call of each method; those that a scope opens, by its name.
REQUESTS: Mapping[str, Mapping[str, tuple[bytes, ...]]] = {
    "evaluate": {
        f"{SERVICE}/Evaluate": (published_request().SerializeToString(),),
        f"{SERVICE}/EvaluateStream": tuple(
            each.SerializeToString() for each in as_stream(published_request())
        ),
        f"{SERVICE}/EvaluateMany": (_many.SerializeToString(),),
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
    stream: Iterator[bytes] = untyped.stream_stream(method)(
        iter(messages), metadata=metadata, timeout=timeout_s
    )
    try:
        replies.extend(stream)
    except grpc.RpcError as error:
        return replies, refusal_of(error)
    return replies, None


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def own_address() -> str | None:
    """Return an address of this machine that is not loopback; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # which sends nothing
        except OSError:
            return None
        return str(probe.getsockname()[0])


def methods_of_the_schema() -> set[str]:
    described = FileDescriptorProto()
    v1.EvaluateRequest.DESCRIPTOR.file.CopyToProto(described)
    (service,) = described.service
    return {f"/{described.package}.{service.name}/{method.name}" for method in service.method}
