"""Fixtures of the server's tests: servers that tests share and leave as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.raw_calls import RawClient
from support.servers import ServerThread, serving


@pytest.fixture(scope="session")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client
        client.check_alive()


@pytest.fixture
def still_alive(client: RawClient) -> Iterator[None]:
    yield
    client.check_alive()
