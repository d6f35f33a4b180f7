"""Load tests of a real server, from processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from gradwire import AsyncClient
from gradwire.loadtest.generator import Phase
from gradwire.loadtest.result import ScenarioResult
from gradwire.loadtest.runner import Fleet, Runner
from gradwire.loadtest.scenarios import Scenario


class Run(Protocol):
    """Runs a scenario for so many seconds; `show` is called once calls count, and then on."""

    def __call__(
        self, scenario: Scenario, duration_s: float, show: Callable[[str], None] = ..., /
    ) -> ScenarioResult: ...


@contextmanager
def fleet_of(target: str, *, processes: int = 1) -> Generator[Fleet]:
    with Fleet(partial(AsyncClient, target), processes=processes) as fleet:
        yield fleet


@contextmanager
def loading(target: str, *, processes: int = 1) -> Generator[Run]:
    """Yield what runs a scenario for so many seconds, without a warm-up."""
    with fleet_of(target, processes=processes) as fleet:

        def run(
            scenario: Scenario, duration_s: float, show: Callable[[str], None] = lambda _: None, /
        ) -> ScenarioResult:
            phase = Phase(
                flows=(), duration_s=duration_s, warm_up_s=0.0, timeout_s=20.0, connections=2
            )
            return Runner(fleet, phase, probe=None, cores=None, show=show).run(scenario)

        yield run
