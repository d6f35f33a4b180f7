"""What holds for all tests."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before grpc starts: servers in this process read connections as those of gradwire-server do, and
# clients as those of other programs.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

# Failures in helpers show values too.
pytest.register_assert_rewrite("support")

# How long an example takes depends on what else the machine does.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def nobody() -> Iterator[str]:
    """Name an address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file of tokens, which is not there yet."""
    return tmp_path / "tokens"
