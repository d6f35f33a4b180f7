"""Every limit is a setting: what exceeds it is refused by its name, and the rest is served."""

from __future__ import annotations

import grpc
import pytest

from gradwire import v1
from support.raw_calls import (
    BOTH_WAYS,
    RawClient,
    as_stream,
    chunk,
    chunks,
    copies,
    ended,
    float32,
    identity_request,
    opening,
    published_request,
    refused,
)
from support.refusals import check_in_band
from support.servers import served, wait_idle


def resample(source: tuple[int, ...], result: tuple[int, ...]) -> v1.EvaluateRequest:
    """Ask for a linear forward of a broadcast input: 4 bytes, whatever its sizes."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(*source, strides=(0,) * len(source)))
    request.output.CopyFrom(float32(*result))
    return request


# The setting, a request that it is too small for, and the reason.
EXCEEDED: dict[str, tuple[str, int, v1.EvaluateRequest, str]] = {
    "rank": ("max_rank", 2, resample((2, 1, 1), (2, 2, 2)), "LIMIT_EXCEEDED"),
    "input elements": ("max_elements", 99, resample((10, 10), (2, 2)), "LIMIT_EXCEEDED"),
    "output elements": ("max_elements", 99, resample((2, 2), (10, 10)), "LIMIT_EXCEEDED"),
    "intermediate elements": ("max_elements", 199, resample((2, 100), (100, 1)), "LIMIT_EXCEEDED"),
    "table entries": ("max_table_entries", 50, resample((8,), (100,)), "TABLE_TOO_LARGE"),
    "float32 axis": ("max_float32_axis", 99, resample((10,), (100,)), "LIMIT_EXCEEDED"),
    "work": ("max_work", 999, resample((10, 10), (20, 20)), "LIMIT_EXCEEDED"),
    "memory": ("max_request_memory_bytes", 5000, resample((10, 10), (90, 90)), "LIMIT_EXCEEDED"),
}


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize("name", EXCEEDED)
def test_what_exceeds_a_limit_is_refused_by_its_name(name: str, how: str) -> None:
    setting, allowed, request, reason = EXCEEDED[name]
    with served(**{setting: allowed}) as (server, client):
        refusal = refused(client.ask(request, how), reason, limit=setting, allowed=allowed)
        assert f"GRADWIRE_{setting.upper()}" in refusal.message
        assert f" {allowed}" in refusal.message
        if how == "EvaluateStream":
            check_in_band(refusal)
        client.check_alive()
        wait_idle(server)


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize("name", EXCEEDED)
def test_the_default_limits_let_the_same_requests_in(
    name: str, how: str, client: RawClient
) -> None:
    assert client.ask(EXCEEDED[name][2], how).refusal is None


def test_a_layout_that_cannot_be_held_whole_is_refused_before_any_data() -> None:
    request = identity_request(4096, 4096)
    with served(max_request_memory_bytes=32 << 20) as (_server, client):
        # In one axis order it streams, however large it is.
        call = client.start([opening(request)])
        assert next(call).WhichOneof("message") == "opened"
        call.cancel()
        request.output.strides[:] = (1, 4096)
        answer = client.stream([opening(request)])
        ended(answer, "LAYOUT_NOT_STREAMABLE", limit="max_request_memory_bytes")
        client.check_alive()


# 4-byte requests that order results of 4 GiB and more, or work of many hours.
GREEDY = {"copies": copies(1 << 15), "upsampling": resample((1 << 15, 1), (1 << 15, 1 << 15))}


@pytest.mark.parametrize("name", GREEDY)
def test_a_small_request_that_orders_a_huge_result_is_sent_to_the_stream(
    name: str, client: RawClient
) -> None:
    refusal = refused(client.evaluate(GREEDY[name]), "USE_STREAM", limit="max_unary_bytes")
    assert str(4 << 30) in refusal.message


def test_use_stream_comes_before_data_is_missed(client: RawClient) -> None:
    refused(client.evaluate(identity_request(1 << 20)), "USE_STREAM")


@pytest.mark.parametrize(
    ("name", "source", "result"), [("input", 101, 1), ("output", 1, 101)], ids=["input", "output"]
)
def test_what_exceeds_max_unary_bytes_on_either_side_is_sent_to_the_stream(
    name: str, source: int, result: int
) -> None:
    request = identity_request(source, data=bytes(4 * source))
    request.output.sizes[:] = [result]
    with served(max_unary_bytes=400) as (_server, client):
        refusal = refused(client.evaluate(request), "USE_STREAM")
        assert refusal.message.startswith(f"{name} is 404 bytes; Evaluate takes 400")
        assert client.stream(as_stream(request)).refusal is None
        assert client.evaluate(identity_request(100, data=bytes(400))).refusal is None


def test_max_chunk_bytes_binds_both_sides() -> None:
    request = published_request()
    with served(max_chunk_bytes=5) as (_server, client):
        answer = client.stream([opening(request), *chunks(request.data, 5)])
        assert answer.opened is not None
        assert answer.opened.max_chunk_bytes == 5
        assert [length for _, length in answer.chunks] == [5, 5, 5, 1]
        answer = client.stream([opening(request), *chunks(request.data, 6)])
        ended(answer, "INVALID_DATA", field="chunk.data")


def test_a_message_beyond_max_message_bytes_is_not_read() -> None:
    with served(max_message_bytes=5 << 20) as (server, client):
        refusal = client.evaluate(identity_request(1 << 20, data=bytes(6 << 20))).refusal
        assert refusal is not None
        assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Told apart from overload by the lack of these.
        assert not refusal.info.reason
        assert refusal.retry_after_s is None
        answer = client.stream([opening(identity_request(4 << 20)), chunk(0, bytes(6 << 20))])
        assert answer.refusal is not None
        wait_idle(server)
        client.check_alive()


def test_the_limits_in_force_can_be_asked_for() -> None:
    names = [field.name for field in v1.Limits.DESCRIPTOR.fields]
    settings = {name: number for number, name in enumerate(names, 101)}
    del settings["stall_timeout"]
    settings |= {"max_rank": 7, "max_message_bytes": 1 << 20}
    with served(**settings, stall_timeout_s=12.5) as (_server, client):
        limits = client.stub.GetServerInfo(v1.GetServerInfoRequest()).limits
    assert {name: getattr(limits, name) for name in settings} == settings
    assert limits.stall_timeout.ToNanoseconds() == 12_500_000_000
