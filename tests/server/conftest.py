"""Fixtures of the server's tests: servers that tests share and leave as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Command, running_command
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


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Run a server of two workers that logs every call, for tests that leave it as it is."""
    log = tmp_path_factory.mktemp("crew") / "log"
    with running_command("--workers", "2", "--access-log", log=log) as command:
        yield command


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file of tokens, which is not there yet."""
    return tmp_path / "tokens"
