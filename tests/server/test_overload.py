"""A full server refuses at once, says when to come back, and then lets others in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

import grpc
import pytest

from gradwire import v1
from raw_calls import PATIENCE_S, RawClient, as_stream, opening, published_request, wait_idle
from refusals import Refusal, check_in_band, check_refusal
from serving import serving

HOWS = ["Evaluate", "EvaluateStream"]


class Held:
    """Streams that are open and wait for their input."""

    def __init__(self, client: RawClient, request: v1.EvaluateRequest) -> None:
        self._client = client
        self._request = request
        self._done = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._stack.close()

    def hold(self) -> None:
        """Open one more and wait for the server's word."""

        def messages() -> Iterator[v1.EvaluateStreamRequest]:
            yield opening(self._request)
            self._done.wait(PATIENCE_S)

        call = self._client.start(messages())
        self._stack.callback(call.cancel)
        assert next(call).WhichOneof("message") == "opened"


def check_overload(refusal: Refusal | None, setting: str, retry_after_s: float) -> None:
    checked = check_refusal(refusal, grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert checked.info.metadata["limit"] == setting
    assert checked.retry_after_s == retry_after_s
    assert f"GRADWIRE_{setting.upper()}" in checked.message


def test_streams_beyond_max_streams_are_asked_to_come_back() -> None:
    settings: dict[str, Any] = {"max_streams": 3, "retry_after_s": 0.75}
    with serving(**settings) as server, RawClient(server.address) as client:
        with Held(client, published_request()) as held:
            for _ in range(3):
                held.hold()
            refusal = client.stream(as_stream(published_request())).refusal
            check_overload(refusal, "max_streams", 0.75)
            assert refusal is not None
            check_in_band(refusal)
            # Unary calls take no place.
            assert client.evaluate(published_request()).refusal is None
        wait_idle(server)
        client.check_alive()


@pytest.mark.parametrize("how", HOWS)
def test_requests_beyond_max_memory_bytes_are_asked_to_come_back(how: str) -> None:
    with serving(max_memory_bytes=1) as server, RawClient(server.address) as client:
        with Held(client, published_request()) as held:
            held.hold()
            refusal = client.ask(published_request(), how).refusal
            check_overload(refusal, "max_memory_bytes", 0.25)
            assert refusal is not None
            if how == "EvaluateStream":
                check_in_band(refusal)
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


def test_refused_streams_leave_their_place_to_others() -> None:
    with serving(max_streams=1) as server, RawClient(server.address) as client:
        bad = published_request()
        bad.output.sizes[0] = 0
        for _ in range(20):
            assert client.stream(as_stream(bad)).refusal is not None
            wait_idle(server)
            assert client.stream(as_stream(published_request())).refusal is None
            wait_idle(server)


def test_a_stream_is_refused_before_its_open_is_read() -> None:
    with (
        serving(max_streams=1) as server,
        RawClient(server.address) as client,
        Held(client, published_request()) as held,
    ):
        held.hold()
        check_overload(client.stream([]).refusal, "max_streams", 0.25)
