"""One real server, and processes that call it, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from load.loading import Run, loading
from support.servers import ServerThread, serving


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    # Calls have a deadline, and a compiler takes its time where nothing is kept.
    with serving(warm_up=True) as running:
        yield running


@pytest.fixture(scope="module")
def run(server: ServerThread) -> Iterator[Run]:
    with loading(server.address, processes=2) as running:
        yield running
