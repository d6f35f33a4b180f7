"""Records the lines that each test executes, also in child processes.

A plugin of pytest: `-p mutants.contexts`, with MUTANTS_DATA set to the output folder.
Coverage's context is the test's identifier; children inherit it by MUTANTS_TEST (see
`traced/sitecustomize.py`, which PYTHONPATH names).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

FOLDER = "MUTANTS_DATA"
TEST = "MUTANTS_TEST"
TRACED = Path(__file__).parent / "traced"


class Contexts:
    """Switches coverage's context from test to test, and notes how long each takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(
            data_file=folder / "lines",
            data_suffix=True,
            config_file=False,
            source_pkgs=["gradwire", "gradwire_server"],
        )
        self._coverage.set_option(
            "run:disable_warnings", ["no-data-collected", "module-not-imported"]
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        os.environ[TEST] = item.nodeid
        start = time.monotonic()
        try:
            return (yield)
        finally:
            if item.nodeid not in self._failed:
                self._seconds[item.nodeid] = time.monotonic() - start
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Exclude a test that failed without mutants."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        name = f"seconds-{os.getpid()}.json"
        (self._folder / name).write_text(json.dumps(self._seconds), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Contexts(Path(os.environ[FOLDER])))
