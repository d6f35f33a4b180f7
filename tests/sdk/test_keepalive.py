"""A server that vanishes without a word is noticed by the calls in flight."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gradwire import Client
from gradwire.errors import UnavailableError
from support.clients import AWAITED, ITEM, LARGE, ONCE, SMALL, Face, copied
from support.serving import serving_process

# Without keepalive calls would end with another error, as long after.
TIMEOUT_S = 60.0

small, large = partial(copied, array=SMALL), partial(copied, array=LARGE)


def many(client: Client) -> None:
    for _ in client.evaluate_many([ITEM] * 3):
        pass


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes 40 s by default take 1.5 s."""
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_MS", 1000)
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_TIMEOUT_MS", 500)


@pytest.mark.parametrize(
    ("face", "call"),
    [(Client, small), (Client, large), (Client, many), (AWAITED, small), (AWAITED, large)],
    ids=["Evaluate", "EvaluateStream", "EvaluateMany", "awaited", "awaited stream"],
)
def test_a_call_ends_that_no_server_answers_any_more(
    face: Face, call: Callable[[Client], Any]
) -> None:
    with (
        serving_process("--backend", "numpy_cpu") as server,
        face(server.address, retry=ONCE, timeout_s=TIMEOUT_S) as client,
    ):
        call(client)
        # Its sockets stay open, and nobody is behind them.
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            call(client)
