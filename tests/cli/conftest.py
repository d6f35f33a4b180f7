"""One real server for the commands that are given a --target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving import serving


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with serving() as server:
        yield server.address
