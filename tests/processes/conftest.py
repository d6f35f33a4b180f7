"""A server of two workers that tests of processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes import Command, running_command


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Run a server of two workers that logs every call, for tests that leave it as it is."""
    log = tmp_path_factory.mktemp("crew") / "log"
    with running_command("--workers", "2", "--access-log", log=log) as command:
        yield command
