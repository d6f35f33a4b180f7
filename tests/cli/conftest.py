"""One real server for the commands that are given a --target, and quick helpers of others."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.cli import explain
from gradwire_server.rpc import axis_tables
from support.servers import serving


@pytest.fixture(scope="session")
def target() -> Iterator[str]:
    with serving() as server:
        yield server.address


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Have servers of commands' own compute with NumPy: they take less time to start.

    And commands tell of a server that is waited for only after a time that no test takes.
    """
    monkeypatch.setenv("GRADWIRE_BACKEND", "numpy_cpu")
    monkeypatch.setattr("gradwire.cli.connection._SILENT_S", 30.0)


@pytest.fixture
def tables_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables built in this process; test_documents.py has a child build them, as users do."""

    def run(command: list[str], **given: Any) -> CompletedProcess[bytes]:
        answer, code, words = io.TextIOWrapper(io.BytesIO()), 0, b""
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(given["input"].decode()))
            patch.setattr(sys, "stdout", answer)
            try:
                axis_tables.main()
            except SystemExit as left:
                code, words = 1, str(left).encode()
        return CompletedProcess(command, code, answer.detach().getvalue(), words)

    monkeypatch.setattr(explain, "subprocess", SimpleNamespace(run=run))
