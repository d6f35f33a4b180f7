"""Plugin of pytest: keeps the test that runs, and then the one that failed, in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE = "MUTANTS_PROGRESS"
_failed: list[str] = []


def _keep(test: str) -> None:
    Path(os.environ[FILE]).write_text(_failed[0] if _failed else test, encoding="utf-8")


def pytest_runtest_logstart(nodeid: str) -> None:
    _keep(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)
        _keep(report.nodeid)


def pytest_runtest_logfinish() -> None:
    _keep("")


pytest_collectreport = pytest_runtest_logreport
