"""Health, reflection, names and traces of calls, and log lines."""

import json
import re
import struct
from datetime import UTC, datetime

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

import gradwire_server.rpc.health
from gradwire import v1
from gradwire.v1 import gradient_service_pb2
from gradwire_server.rpc.health import HAS_LIST
from gradwire_server.rpc.open_inference.descriptors import SERVICE
from support import raw_calls
from support.processes import run_command
from support.raw_calls import (
    HEALTH,
    TRACEPARENT,
    as_stream,
    call,
    published_request,
    wait_until,
    wrong_request,
)
from support.raw_frames import DATA, END_HEADERS, HEADERS, RawConnection, call_headers, frame
from support.servers import commanded, served

SERVING = health_pb2.HealthCheckResponse.SERVING
METHODS = ("Check", "Watch", *["List"] * HAS_LIST)


def test_the_server_and_its_service_are_serving_and_others_unknown(client):
    health = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", "gradwire.v1.GradientService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    question = health_pb2.HealthCheckRequest(service="gradwire.v2.GradientService")
    _, refusal = call(client.channel, HEALTH, (question.SerializeToString(),))
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(question, timeout=raw_calls.PATIENCE_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    if HAS_LIST:
        statuses = health.List(health_pb2.HealthListRequest()).statuses
        told = {name: each.status for name, each in statuses.items()}
        assert told == {"": SERVING, "gradwire.v1.GradientService": SERVING}


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_short_question_is_refused(client, method):
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
def test_of_questions_that_do_not_come_whole_a_few_are_awaited(method, monkeypatch):
    # Of twenty, four are more than are awaited: the oldest end, and who asks as usual is answered.
    monkeypatch.setattr(gradwire_server.rpc.health, "_PATIENCE_S", 3600.0)
    head = call_headers(method=f"/grpc.health.v1.Health/{method}")
    begun = struct.pack(">BI", 0, 1 << 20) + bytes(500)
    received = bytearray()

    def ended():
        received.extend(slow.drain(0.2))
        return received.count(b"the request did not come in time")

    with served() as (server, client), RawConnection(server.address) as slow:
        begins = [
            frame(HEADERS, END_HEADERS, n, head) + frame(DATA, 0, n, begun) for n in range(1, 43, 2)
        ]
        slow.send(*begins[:20])
        client.check_alive()
        wait_until(lambda: ended() >= 4)
        assert ended() == 4
        # One more ends the oldest, and then itself as its time is over.
        monkeypatch.setattr(gradwire_server.rpc.health, "_PATIENCE_S", 0.1)
        slow.send(begins[20])
        wait_until(lambda: ended() == 6)


def asked(client, **question):
    """Ask reflection one question."""
    request = reflection_pb2.ServerReflectionRequest(**question).SerializeToString()
    (answer,), refusal = call(client.channel, raw_calls.REFLECTION, (request,))
    assert refusal is None
    return reflection_pb2.ServerReflectionResponse.FromString(answer)


def test_reflection_lists_the_services_and_tells_the_schema_of_both_pools(client):
    listed = asked(client, list_services="").list_services_response.service
    assert {each.name for each in listed} == {
        "gradwire.v1.GradientService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    }
    for service in (gradient_service_pb2.DESCRIPTOR, SERVICE.file):
        own = descriptor_pb2.FileDescriptorProto()
        service.CopyToProto(own)
        answer = asked(client, file_containing_symbol=f"{own.package}.{own.service[0].name}")
        assert own.SerializeToString() in answer.file_descriptor_response.file_descriptor_proto


def test_questions_about_the_server_return_name_and_trace_too(client):
    metadata = (("traceparent", TRACEPARENT),)
    for _, done in (
        client.stub.ListOperators.with_call(v1.ListOperatorsRequest(), metadata=metadata),
        client.stub.GetServerInfo.with_call(v1.GetServerInfoRequest(), metadata=metadata),
    ):
        trailers = dict(done.trailing_metadata())
        assert trailers["traceparent"] == TRACEPARENT
        assert len(trailers["gradwire-request-id"]) == 32


@pytest.mark.parametrize("name", ["", " a ", "~" * 128, "%25 \"'\\"])
def test_the_name_of_a_call_comes_back_and_one_without_gets_one(client, name):
    request, names = published_request(), set()
    request.request_id = name
    for _ in range(3):
        trailers = client.evaluate(request).trailers
        names.add(trailers["gradwire-request-id"])
        assert trailers["traceparent"] == TRACEPARENT
        assert "compute;dur=" in trailers["gradwire-timing"]
    assert names == {name} if name else [len(each) for each in names] == [32] * 3


def test_every_line_is_json_and_tells_what_was_asked_by_whom_and_how_it_ended(tmp_path):
    flags = ("--log-format", "json", "--stall-timeout-s", "3", "--access-log")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        for each in (published_request(), raw_calls.wrong_request()):
            client.evaluate(each)
            client.stream(as_stream(each))
        # At whatever moment it is.
        for _ in range(300):
            raw_calls.WaitingStream(client).cancel()
        command.wait_for_log("CANCELLED", times=300)
        call = client.start(as_stream(raw_calls.copies(1 << 15)))
        command.wait_for_log("STALLED")
        call.cancel()
        command.stop()
    lines = [json.loads(line) for line in command.log.splitlines()]
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    calls = [line for line in lines if line["event"] == "call"]
    both = ("Evaluate", "EvaluateStream")
    assert [(each["method"], each["status"]) for each in calls] == [
        *((method, status) for status in ("OK", "INVALID_ARGUMENT") for method in both),
        *[("EvaluateStream", "CANCELLED")] * 300,
        ("EvaluateStream", "DEADLINE_EXCEEDED"),
    ]
    for each in calls[:2]:
        assert (each["operator"], each["sizes"]) == ("dml_resample_grad", [1, 3])
    for each in calls[2:4]:
        assert (each["reason"], each["level"]) == ("INVALID_FIELD", "info")
        assert each["error"].startswith("input.sizes[0]: ")
    for each in calls[:-1]:
        assert datetime.fromisoformat(each["time"]).tzinfo == UTC
        assert each["duration_ms"] >= 0
        assert (each["request_id"], each["traceparent"]) == (raw_calls.REQUEST_ID, TRACEPARENT)


# Writes lines in order, one of them with a traceback.
_TELLING = """
import asyncio, logging, sys
from gradwire_server.observability import logs

async def main():
    for number in range(100):
        logs.info("call", number=number, name="two words")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed", extra={"facts": {"number": 100}})
    log.debug("hidden")
    logs.info("call", number=101)

log = logging.getLogger("gradwire_server")
logs.configure(sys.argv[1], "info", worker=3)
asyncio.run(main())
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_come_in_order_with_tracebacks(form):
    lines = run_command(form, program=("-c", _TELLING)).stderr
    numbers = [int(number) for number in re.findall(r'(?:number=|"number": )(\d+)', lines)]
    assert numbers == list(range(102))
    assert lines.count("ValueError: bad") == 1
    assert "hidden" not in lines
    if form == "json":
        told = [json.loads(line) for line in lines.splitlines()]
        assert all(each["worker"] == 3 for each in told)
        assert told[100]["traceback"].startswith("Traceback ")
    else:
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
        assert re.match(rf'{time} info +call worker=3 number=0 name="two words"\n', lines)
        assert re.search(r"error +failed worker=3 number=100\nTraceback ", lines)


def test_a_malformed_traceparent_starts_a_new_trace(client):
    zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01"
    for traceparent in ("", zero, TRACEPARENT.upper(), "x" * 4000):
        answer = client.evaluate(published_request(), traceparent=traceparent)
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", answer.trailers["traceparent"])


@pytest.mark.parametrize(("level", "told"), [("debug", 3), ("info", 1), ("warning", 0)])
def test_calls_that_succeed_are_told_at_debug_and_others_at_info(tmp_path, level, told):
    with commanded("--log-level", level, log=tmp_path / "log") as (command, client):
        client.check_alive()
        client.evaluate(wrong_request())
        command.stop()
    assert re.findall(r" (\w+) +call ", command.log) == ["debug", "debug", "info"][3 - told :]
    assert told or not command.log
