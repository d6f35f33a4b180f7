"""Fixtures of the SDK's tests: a server that all share, and ways to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gradwire import Client
from support.clients import FACES, Face
from support.raw_calls import wait_until
from support.relay import Relay, relaying
from support.servers import ServerThread, serving, wait_idle


@pytest.fixture(scope="session")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def address(server: ServerThread) -> str:
    return server.address


@pytest.fixture(scope="session")
def plain(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


@pytest.fixture(params=FACES.values(), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Face:
    """Run the test with Client and with AsyncClient."""
    face: Face = request.param
    return face


@pytest.fixture
def faced(face: Face, address: str) -> Iterator[Client]:
    """Run the test with a client of either kind."""
    with face(address) as client:
        yield client


@pytest.fixture
def relay(address: str) -> Iterator[Relay]:
    with relaying(address) as relay:
        yield relay


@pytest.fixture
def nothing_is_left(server: ServerThread) -> Iterator[None]:
    """Check that a test leaves no call on the server and no thread here."""
    wait_idle(server)
    yield
    started = time.monotonic()
    wait_idle(server)
    ours = {"gradwire-receiver", "gradwire-watch"}
    wait_until(lambda: not ours & {each.name for each in threading.enumerate()})
    # After a minute without progress both sides end a stream by themselves.
    assert time.monotonic() < started + 30
