"""Callers whose connection breaks are gone, and nothing was wrong with the server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from gradwire import v1
from many_calls import ManyCall, named
from raw_calls import RawClient, as_stream, identity_request, wait_idle, wait_until
from relay import relaying
from serving import serving

# What a write tells of a broken connection comes sometimes before and sometimes after its end.
TIMES = 30


def copies(size: int) -> v1.EvaluateRequest:
    """Order copies of one number, with 4 bytes."""
    request = identity_request(size, size, data=bytes(4))
    request.input.strides[:] = [0, 0]
    return request


def many(client: RawClient) -> object:
    """Order more results than any buffers on the way hold, and read none."""
    call = ManyCall(client)
    call.send(*(named(copies(512), str(number)) for number in range(40)))
    return call


def stream(client: RawClient) -> object:
    """Order one such result."""
    return client.start(as_stream(copies(1 << 12)))


@pytest.mark.parametrize("ask", [many, stream])
def test_a_connection_that_breaks_while_the_server_writes_is_no_fault_of_the_server(
    ask: Callable[[RawClient], object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), serving(compute_threads=1) as server:
        in_phase = server.server.service.active.in_phase
        for _ in range(TIMES):
            with relaying(server.address) as relay, RawClient(relay.address) as client:
                call = ask(client)
                wait_until(lambda: in_phase["send"])
                # Until all buffers are full and a write waits for them.
                assert not threading.Event().wait(0.05)
                relay.close()
                del call
                wait_idle(server)
    ended = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert [each["status"] for each in ended] == ["CANCELLED"] * TIMES
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
