"""Generic tools learn the server's state, its services, and who asked what."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from gradwire import v1
from gradwire.v1 import gradient_service_pb2
from gradwire_server.rpc.health import has_list
from gradwire_server.rpc.open_inference.descriptors import SERVICE
from support.raw_calls import (
    HEALTH,
    PATIENCE_S,
    REFLECTION,
    TRACEPARENT,
    RawClient,
    call,
    published_request,
    wait_until,
)
from support.raw_frames import DATA, END_HEADERS, HEADERS, RawConnection, call_headers, frame
from support.servers import served

SERVING = health_pb2.HealthCheckResponse.SERVING
METHODS = ("Check", "Watch", *["List"] * has_list())


def test_the_server_and_its_service_are_serving_and_others_unknown(client: RawClient) -> None:
    health: Any = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", "gradwire.v1.GradientService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    question = health_pb2.HealthCheckRequest(service="gradwire.v2.GradientService")
    _, refusal = call(client.channel, HEALTH, (question.SerializeToString(),))
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(question, timeout=PATIENCE_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.skipif(not has_list(), reason="grpcio-health-checking is too old for the RPC List")
def test_all_that_is_served_is_listed(client: RawClient) -> None:
    untyped: Any = health_pb2
    (listed,), refusal = call(client.channel, "/grpc.health.v1.Health/List", (b"",))
    assert refusal is None
    statuses = untyped.HealthListResponse.FromString(listed).statuses
    told = {name: each.status for name, each in statuses.items()}
    assert told == {"": SERVING, "gradwire.v1.GradientService": SERVING}


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_short_question_is_refused(client: RawClient, method: str) -> None:
    long = health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()
    wrong = {"no request came": (), "at most 4096 bytes": (long,)}
    if method != "List":  # whose request has no fields
        wrong["not a HealthCheckRequest"] = (b"\xff",)
    for words, messages in wrong.items():
        replies, refusal = call(client.channel, f"/grpc.health.v1.Health/{method}", messages)
        assert refusal is not None
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert words in refusal.message
        assert not replies


@pytest.mark.parametrize("method", METHODS)
def test_of_questions_that_do_not_come_whole_a_few_are_awaited(method: str) -> None:
    # Of twenty, four are more than are awaited: the oldest end, and who asks as usual is answered.
    head = call_headers(method=f"/grpc.health.v1.Health/{method}")
    begun = struct.pack(">BI", 0, 1 << 20) + bytes(500)
    received = b""

    def ended(count: int) -> bool:
        nonlocal received
        received += slow.drain(0.2)
        return received.count(b"the request did not come in time") == count

    with served() as (server, client), RawConnection(server.address) as slow:
        for stream in range(1, 41, 2):
            slow.send(frame(HEADERS, END_HEADERS, stream, head), frame(DATA, 0, stream, begun))
        client.check_alive()
        wait_until(lambda: ended(4))
        wait_until(lambda: ended(20))


def asked(client: RawClient, **question: Any) -> reflection_pb2.ServerReflectionResponse:
    """Ask reflection one question."""
    request = reflection_pb2.ServerReflectionRequest(**question).SerializeToString()
    (answer,), refusal = call(client.channel, REFLECTION, (request,))
    assert refusal is None
    return reflection_pb2.ServerReflectionResponse.FromString(answer)


def test_reflection_lists_the_services(client: RawClient) -> None:
    listed = asked(client, list_services="").list_services_response.service
    assert {each.name for each in listed} == {
        "gradwire.v1.GradientService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    }


@pytest.mark.parametrize(
    "service", [gradient_service_pb2.DESCRIPTOR, SERVICE.file], ids=["own", "inference"]
)
def test_reflection_tells_the_schema_of_both_pools(client: RawClient, service: Any) -> None:
    own = descriptor_pb2.FileDescriptorProto()
    service.CopyToProto(own)
    answer = asked(client, file_containing_symbol=f"{own.package}.{own.service[0].name}")
    assert own.SerializeToString() in answer.file_descriptor_response.file_descriptor_proto


def test_questions_about_the_server_return_name_and_trace_too(client: RawClient) -> None:
    metadata = (("traceparent", TRACEPARENT),)
    for _, done in (
        client.stub.ListOperators.with_call(v1.ListOperatorsRequest(), metadata=metadata),
        client.stub.GetServerInfo.with_call(v1.GetServerInfoRequest(), metadata=metadata),
    ):
        trailers = dict(done.trailing_metadata())
        assert trailers["traceparent"] == TRACEPARENT
        assert len(trailers["gradwire-request-id"]) == 32


@pytest.mark.parametrize(
    "name", ["", "a", "two words", " ", " a ", "x" * 127, "~" * 128, "%25 \"'\\"]
)
def test_the_name_of_a_call_comes_back_and_one_without_gets_one(
    client: RawClient, name: str
) -> None:
    request, names = published_request(), set[str]()
    request.request_id = name
    for _ in range(3):
        trailers = client.evaluate(request).trailers
        names.add(trailers["gradwire-request-id"])
        assert trailers["traceparent"] == TRACEPARENT
        assert "compute;dur=" in trailers["gradwire-timing"]
    assert names == {name} if name else [len(each) for each in names] == [32] * 3
