"""Reports the start and outcome of each test, one line each.

A plugin of pytest: `-p mutants.progress`, with MUTANTS_PROGRESS set to the output file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE = "MUTANTS_PROGRESS"


def _report(word: str, test: str) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(f"{word}\t{test}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _report("begun", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _report("failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _report("ended", nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _report("failed", report.nodeid)


def pytest_sessionfinish() -> None:
    _report("done", "")
