"""Fixtures of the SDK's tests: a server that all share, and ways to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from numpy.typing import NDArray

from gradwire import Client
from gradwire_server import LocalClient
from support.clients import FACES, Collect, Face, halved, outcomes_of
from support.raw_calls import wait_until
from support.relay import Relay, relaying
from support.servers import DIFF_DST, Fleet, ServerThread, fleet_serving, serving, wait_idle


@pytest.fixture(scope="session")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def plain(server: ServerThread) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture(params=FACES.values(), ids=list(FACES))
def face(request: pytest.FixtureRequest) -> Face:
    """Run the test with Client and with AsyncClient."""
    face: Face = request.param
    return face


@pytest.fixture
def collect(face: Face) -> Collect:
    """Return what gives place and outcome of every item of evaluate_many."""
    return partial(outcomes_of, face)


@pytest.fixture
def relay(server: ServerThread) -> Iterator[Relay]:
    with relaying(server.address) as relay:
        yield relay


@pytest.fixture
def nothing_is_held_on_the_server(server: ServerThread) -> Iterator[None]:
    wait_idle(server)
    yield
    wait_idle(server)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    yield
    ours = {"gradwire-receiver", "gradwire-watch"}
    wait_until(lambda: not ours & {each.name for each in threading.enumerate()})


@pytest.fixture
def nothing_waits_for_the_watch(no_thread_is_left: None) -> Iterator[None]:  # noqa: ARG001
    # After a minute without progress both sides end a stream by themselves.
    started = time.monotonic()
    yield
    assert time.monotonic() < started + 30


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with fleet_serving() as fleet:
        yield fleet


@pytest.fixture(scope="session")
def expected() -> NDArray[Any]:
    """Return what servers that share an evaluation are to give."""
    with LocalClient() as local:
        expected: NDArray[Any] = halved(local, DIFF_DST)
        return expected
