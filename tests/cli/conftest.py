"""One real server for the commands that are given a --target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.servers import serving


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with serving() as server:
        yield server.address


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Have servers of commands' own compute with NumPy: they take less time to start."""
    monkeypatch.setenv("GRADWIRE_BACKEND", "numpy_cpu")
