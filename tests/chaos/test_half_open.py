"""A connection whose other end is gone without a word: every call on it ends, at both ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradwire import Client, DeadlineExceededError, Item, RetryPolicy, UnavailableError, ops
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.relay import relaying
from support.servers import serving, wait_idle

COPY = ops.DmlResample(interpolation_mode="linear")
SMALL = np.ones((4, 4), np.float32)
LARGE = np.ones((512, 512), np.float32)
ONCE = RetryPolicy(max_attempts=1)
TIMEOUT_S = 0.5


def unary(client: Client) -> None:
    client.evaluate(COPY, SMALL, output_shape=SMALL.shape)


def stream(client: Client) -> None:
    client.evaluate(COPY, LARGE, output_shape=LARGE.shape)


def many(client: Client) -> None:
    for _ in client.evaluate_many([Item(COPY, SMALL, SMALL.shape)] * 3):
        pass


@pytest.mark.parametrize("ask", [unary, stream, many])
def test_a_call_ends_at_both_ends_where_the_line_between_is_dead(
    ask: Callable[[Client], None],
) -> None:
    with (
        serving(backend=NumpyCpu(), stall_timeout_s=TIMEOUT_S) as server,
        relaying(server.address) as relay,
        Client(
            relay.address, retry=ONCE, timeout_s=TIMEOUT_S, stream_threshold_bytes=1 << 16
        ) as client,
    ):
        ask(client)
        relay.swallow()
        with pytest.raises((DeadlineExceededError, UnavailableError)):
            ask(client)
        wait_idle(server)
