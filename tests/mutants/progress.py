"""Tells what the tests of a mutant come to, one line at a time, so that a hang shows as well.

A plugin of pytest: `-p mutants.progress`, with MUTANTS_PROGRESS set to the file for what it writes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE = "MUTANTS_PROGRESS"


def _tell(word: str, test: str) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(f"{word}\t{test}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Tell that a test begins."""
    _tell("begun", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell that a test failed."""
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Tell that a test has ended."""
    _tell("ended", nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tell that a file of tests cannot be imported."""
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_sessionfinish() -> None:
    """Tell that no test is left."""
    _tell("done", "")
