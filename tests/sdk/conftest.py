"""Fixtures of the SDK's tests: a server of their module's own, and ways to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raw_calls import wait_idle
from relay import Relay, relaying
from serving import ServerThread, serving


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


@pytest.fixture
def relay(server: ServerThread) -> Iterator[Relay]:
    with relaying(server.address) as relay:
        yield relay


@pytest.fixture
def nothing_is_held_on_the_server(server: ServerThread) -> Iterator[None]:
    yield
    wait_idle(server)
