"""Connections are cut at any byte, and no call is lost or brings other bits."""

from __future__ import annotations

import pytest

from chaos.cutting import drawn
from gradwire import RetryPolicy
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.load import Callers
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import serving

KINDS = ("unary", "async unary", "many", "small stream", "stream", "async stream")
PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05, max_attempts=100)


@pytest.mark.parametrize(
    ("cuts", "seed"), [(15, 0), pytest.param(100, 1, marks=pytest.mark.slow)], ids=["15", "100"]
)
def test_no_call_is_lost_while_every_connection_is_cut(cuts: int, seed: int) -> None:
    down, up = drawn(seed)
    with (
        serving(backend=NumpyCpu()) as server,
        relaying(server.address, cuts=down, cuts_up=up) as relay,
    ):
        with Callers(relay.address, *KINDS, retry=PROMPT) as callers:
            wait_until(lambda: relay.cut >= cuts, patience_s=240)
            relay.spare()
            callers.wait_for_more()
        callers.check()
