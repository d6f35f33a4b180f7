"""Scenarios against a real server: counts that add up, results that are judged, lost time found."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from gradwire.loadtest.generator import LoadSettings, Phase, dues
from gradwire.loadtest.result import FlowResult, failures
from gradwire.loadtest.scenarios import (
    PROBLEMS,
    SCENARIOS,
    Flow,
    Judge,
    Problem,
    Scenario,
    changed,
    digest_of,
)
from gradwire_server import LocalClient
from load.loading import Run, loading
from support.servers import serving_process

# The server is stopped so long, in the midst of a load of four times that.
STALL_S = 0.5
LOAD_S = 4 * STALL_S


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_the_digest_is_that_of_the_specifications_result(problem: Problem) -> None:
    # NumPy takes seconds for the one that is there to take time.
    with LocalClient("auto" if problem.broadcast else "numpy_cpu") as local:
        array = problem.input()
        result = local.evaluate(problem.operator, array, output_shape=problem.received)
    assert digest_of(result) == problem.digest
    assert result.nbytes == problem.received_bytes


def test_a_judge_knows_one_bit_from_another() -> None:
    problem = PROBLEMS["tiny"]
    with LocalClient("numpy_cpu") as local:
        right = local.evaluate(problem.operator, problem.input(), output_shape=problem.received)
    judge, wrong = Judge(problem), right.copy()
    wrong.view(np.uint32).flat[-1] ^= 1
    # The first wrong one must not become what others are compared with.
    assert [judge.is_right(one) for one in (wrong, right, wrong, right)] == [0, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_made_has_one_end(run: Run, name: str) -> None:
    result = run(SCENARIOS[name], 0.5)
    for flow in result.flows:
        assert flow.sent == sum(outcome.count for outcome in flow.outcomes)
        assert flow.sent == sum(second.made for second in flow.seconds)
        assert flow.ok == sum(second.ok for second in flow.seconds)
        assert flow.sent - flow.ok == sum(second.errors for second in flow.seconds)
        assert flow.ok == flow.uncorrected.count
        assert flow.wrong == 0
    assert failures(result) == 0
    assert sum(flow.sent for flow in result.flows)
    assert (result.peak_per_s is not None) is (name == "overload")


def test_an_open_loop_makes_the_calls_that_are_due_and_items_of_one_stream_are_judged_each(
    run: Run,
) -> None:
    flow = run(changed(SCENARIOS["tiny"], rate=60), 1.0).flows[0]
    assert (flow.sent, flow.rate, flow.callers) == (60, 60, None)
    many = Flow(name="many", problem="tiny", manner="many", items=8, callers=1)
    result = run(Scenario(name="many", summary="", flows=(many,)), 0.3)
    assert failures(result) == 0
    assert result.flows[0].ok
    assert result.flows[0].sent_bytes == 8 * PROBLEMS["tiny"].sent_bytes


def test_callers_whom_no_server_answers_pause(nobody: str) -> None:
    with loading(nobody) as run:
        (flow,) = run(SCENARIOS["tiny"], 2.5).flows
    assert [one.status for one in flow.outcomes] == ["UNAVAILABLE"]
    # Four in a second, of each of 4 callers.
    assert flow.sent <= 4 * 11


def stalled(scenario: Scenario) -> FlowResult:
    """Run a scenario on a server that is stopped for a while in the midst of it."""
    # Calls that were due in the stall are late, and not refused.
    flags = ("--backend", "numpy_cpu", "--no-warm-up", "--max-queue-s", "60")
    with serving_process(*flags) as server, ThreadPoolExecutor(1) as pool:
        calling = threading.Event()

        def stop() -> None:
            calling.wait()
            time.sleep(LOAD_S / 4)
            os.kill(server.process.pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(server.process.pid, signal.SIGCONT)

        pool.submit(stop)
        with loading(
            server.address, show=lambda line: None if "warming" in line else calling.set()
        ) as run:
            result = run(scenario, LOAD_S)
    assert failures(result) == 0
    return result.flows[0]


def test_a_stall_is_in_the_percentiles_of_an_open_loop() -> None:
    flow = stalled(changed(SCENARIOS["tiny"], rate=100))
    assert flow.sent == 100 * LOAD_S
    # A quarter of the calls are due in the stall: the first of them waits all of it, the last none.
    assert flow.corrected.max_ms >= 0.95e3 * STALL_S
    assert flow.corrected.p90_ms >= 0.5e3 * STALL_S


@pytest.mark.slow
def test_the_correction_of_a_closed_loop_finds_a_stall_that_few_calls_met() -> None:
    flow = stalled(changed(SCENARIOS["tiny"], callers=2))
    assert flow.uncorrected.max_ms >= 0.95e3 * STALL_S
    # Of at least a hundred calls one or two met it: the 90th percentile knows nothing of it.
    assert flow.uncorrected.count > 100
    assert flow.uncorrected.p90_ms < 0.5e3 * STALL_S
    assert flow.corrected.p90_ms > 2 * flow.uncorrected.p90_ms
    assert flow.expected_interval_ms == flow.uncorrected.p50_ms


def test_processes_together_make_the_calls_of_one_rate() -> None:
    for processes, burst in ((1, 1), (1, 4), (3, 1), (3, 4)):
        flow = Flow(name="", problem="tiny", rate=10.0, burst=burst)
        phases = [
            Phase((flow,), LoadSettings(2.0, 1.0, 1.0, processes=processes), number)
            for number in range(processes)
        ]
        times = sorted(chain.from_iterable(dues(flow, phase, 100.0) for phase in phases))
        expected = [99 + number // burst * burst / 10 for number in range(40)]
        np.testing.assert_allclose(times, [time for time in expected if time < 102])


def test_a_rate_and_callers_are_divided_as_the_scenario_does() -> None:
    mixed = SCENARIOS["mixed"]
    rates = [flow.rate for flow in changed(mixed, rate=70).flows]
    np.testing.assert_allclose(rates, (40, 20, 10))
    assert [flow.callers for flow in changed(mixed, callers=14).flows] == [8, 4, 2]
    slow = SCENARIOS["slow-readers"]
    assert changed(slow, rate=5).flows[1] == slow.flows[1]
    assert replace(changed(SCENARIOS["overload"], rate=5)).of_peak == 0
