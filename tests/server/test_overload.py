"""A full server refuses at once, says when to come back, and then lets others in."""

from __future__ import annotations

import pytest

from gradwire import v1
from gradwire_server.errors import RETRY_AFTER_S
from support.raw_calls import (
    BOTH_WAYS,
    Answer,
    RawClient,
    WaitingStream,
    as_stream,
    chunk,
    opening,
    published_request,
    refused,
    wait_until,
)
from support.raw_frames import (
    END_HEADERS,
    HEADERS,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    message,
)
from support.refusals import Refusal, check_in_band
from support.servers import served, serving, wait_idle


def check_overload(answer: Answer, setting: str, retry_after_s: float) -> Refusal:
    refusal = refused(answer, "OVERLOADED", limit=setting)
    assert refusal.retry_after_s == retry_after_s
    assert f"GRADWIRE_{setting.upper()}" in refusal.message
    return refusal


def test_streams_beyond_max_streams_are_asked_to_come_back() -> None:
    with served(max_streams=3) as (server, client):
        held = [WaitingStream(client, early=1) for _ in range(3)]
        answer = client.stream(as_stream(published_request()))
        check_in_band(check_overload(answer, "max_streams", RETRY_AFTER_S))
        # Before its open is read.
        assert client.stream([]).refusal is not None
        # Unary calls take no place.
        assert client.evaluate(published_request()).refusal is None
        for each in held:
            each.finish()
        wait_idle(server)
        client.check_alive()


@pytest.mark.parametrize("how", BOTH_WAYS)
def test_requests_beyond_max_memory_bytes_are_asked_to_come_back(how: str) -> None:
    with served(max_memory_bytes=1) as (server, client):
        held = WaitingStream(client, early=1)
        refusal = check_overload(client.ask(published_request(), how), "max_memory_bytes", 0.25)
        if how == "EvaluateStream":
            check_in_band(refusal)
        held.cancel()
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


def test_refused_streams_leave_their_place_to_others() -> None:
    with served(max_streams=1) as (server, client):
        bad = published_request()
        bad.output.sizes[0] = 0
        for _ in range(20):
            assert client.stream(as_stream(bad)).refusal is not None
            wait_idle(server)
            assert client.stream(as_stream(published_request())).refusal is None
            wait_idle(server)


def open_streams(
    connection: RawConnection, count: int, *messages: v1.EvaluateStreamRequest
) -> None:
    """Begin as many streams with the same messages, and send nothing more."""
    headers = call_headers(method="/gradwire.v1.GradientService/EvaluateStream")
    body = b"".join(message(each.SerializeToString()) for each in messages)
    for stream in range(1, 2 * count, 2):
        connection.send(
            frame(HEADERS, END_HEADERS, stream, headers), *data_frames(stream, body, last=False)
        )


def test_one_caller_leaves_streams_to_others() -> None:
    request = published_request()
    with (
        serving(max_streams=8) as server,
        RawConnection(server.address, source="127.0.0.2") as connection,
        RawClient(server.address) as client,
    ):
        open_streams(connection, 8, opening(request), chunk(0, request.data[:1]))
        wait_until(lambda: server.server.service.admission.refusals["max_streams"] == 2)
        assert server.server.streams == 6
        client.check_alive()
