"""Load tests of a real server, from processes of their own, and programs of long ones."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gradwire import AsyncClient
from gradwire.loadtest.generator import LoadSettings
from gradwire.loadtest.result import ScenarioResult
from gradwire.loadtest.runner import Runner
from gradwire.loadtest.scenarios import Scenario

# Runs a scenario for so many seconds.
Run = Callable[[Scenario, float], ScenarioResult]


@contextmanager
def loading(
    target: str, *, processes: int = 1, show: Callable[[str], None] = lambda _: None
) -> Generator[Run]:
    """Yield what runs a scenario for so many seconds, without a warm-up.

    show  called once calls count, and then on
    """
    with Runner(partial(AsyncClient, target), show=show) as runner:

        def run(scenario: Scenario, duration_s: float) -> ScenarioResult:
            settings = LoadSettings(duration_s, warm_up_s=0.0, timeout_s=20.0, processes=processes)
            return runner.run(scenario, settings)

        yield run


def reported(
    text: str | None, run: Callable[..., dict[str, Any]], **defaults: float
) -> dict[str, Any]:
    """Run with what the command line says; write the report where --json says; return it.

    text      what --help prints
    run       called with a folder of its own, and the options by their names
    defaults  of the options, whose types are theirs: duration_s is --duration
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in defaults.items():
        flag = f"--{name.removesuffix('_s').replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=type(default), default=default)
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    file = options.pop("json")
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), **options)
    if file:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report
