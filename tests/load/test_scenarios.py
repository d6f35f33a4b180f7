"""Load tests of a real server: bits judged, lost time found and corrected, all of it told."""

import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import AsyncClient
from gradwire.loadtest import result as record
from gradwire.loadtest.generator import LoadSettings, Phase, dues, percentile
from gradwire.loadtest.report import to_html
from gradwire.loadtest.result import ServerSecond, corrected, failures, nines
from gradwire.loadtest.runner import Runner, read_usage, warnings
from gradwire.loadtest.scenarios import PROBLEMS, SCENARIOS, Flow, Judge, Scenario, changed
from gradwire_server import LocalClient
from load.soak import anonymous, family, growth, held
from support.processes import running_command
from support.servers import serving, serving_process

MARKUP = "<script>alert(1)</script> & \"quotes\" 'too'"
# The server is stopped so long, in the midst of a load of four times that.
STALL_S = 1.0
LOAD_S = 4 * STALL_S


@contextmanager
def loading(target, *, processes=1, show=lambda _: None):
    """Yield what runs a scenario for so many seconds; `show` is called once calls count."""
    with Runner(partial(AsyncClient, target), show=show) as runner:

        def run(scenario, duration_s):
            settings = LoadSettings(duration_s, warm_up_s=0.0, timeout_s=20.0, processes=processes)
            return runner.run(scenario, settings)

        yield run


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_the_digest_is_that_of_the_specifications_result(problem):
    # NumPy takes seconds for the one that is there to take time.
    with LocalClient("auto" if problem.broadcast else "numpy_cpu") as local:
        array = problem.input()
        result = local.evaluate(problem.operator, array, output_shape=problem.received)
    assert Judge(problem).is_right(result)
    assert result.nbytes == problem.received_bytes


def test_a_stall_is_in_the_percentiles_of_either_loop():
    # Calls that were due in the stall are late, and not refused.
    flags = ("--backend", "numpy_cpu", "--no-warm-up", "--max-queue-s", "60")
    both = (Flow("open", "tiny", rate=100), Flow("closed", "tiny", callers=2))
    with serving_process(*flags) as server, ThreadPoolExecutor(1) as pool:
        calling = threading.Event()

        def stop():
            calling.wait()
            time.sleep(LOAD_S / 4)
            os.kill(server.process.pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(server.process.pid, signal.SIGCONT)

        pool.submit(stop)
        with loading(server.address, show=lambda _: calling.set()) as run:
            result = run(Scenario("stalled", "", both), LOAD_S)
    assert failures(result) == 0
    flow, closed = result.flows
    assert flow.sent == 100 * LOAD_S
    # A quarter of the calls are due in the stall: the first of them waits all of it, the last none.
    assert flow.corrected.max_ms >= 0.95e3 * STALL_S
    assert flow.corrected.p90_ms >= 0.5e3 * STALL_S
    assert closed.uncorrected.max_ms >= 0.95e3 * STALL_S
    # Only the corrected times hold the calls that two callers would have made during the stall.
    assert closed.corrected.count > closed.uncorrected.count
    assert closed.corrected.max_ms == closed.uncorrected.max_ms
    assert closed.expected_interval_ms == closed.uncorrected.p50_ms


def test_processes_together_make_the_calls_of_one_rate():
    for processes, burst in ((1, 1), (1, 4), (3, 1), (3, 4)):
        flow = Flow(name="", problem="tiny", rate=10.0, burst=burst)
        phases = [
            Phase((flow,), LoadSettings(2.0, 1.0, 1.0, processes=processes), number)
            for number in range(processes)
        ]
        times = sorted(chain.from_iterable(dues(flow, phase, 100.0) for phase in phases))
        expected = [99 + number // burst * burst / 10 for number in range(40)]
        np.testing.assert_allclose(times, [time for time in expected if time < 102])


def test_the_page_tells_all_and_needs_nothing_from_elsewhere(monkeypatch):
    """Of one scenario in either loop; the server's figures are as if they had been looked at."""
    scenarios = (SCENARIOS["cancellations"], changed(SCENARIOS["mixed"], rate=50))
    # Calls have a deadline, and a compiler takes its time where nothing is kept.
    with serving(warm_up=True) as server, loading(server.address, processes=2) as run:
        results = [run(one, 0.5) for one in scenarios]
    seconds = [ServerSecond(second=0.4, cpu_cores=0.5, rss_mib=100.0, processes=1)]
    document = record.Document(
        format=record.FORMAT,
        when="2026-11-22T10:00:00+00:00",
        command=f"gradwire bench {MARKUP}",
        interrupted=False,
        machine=record.Machine(MARKUP, 2, 1024, MARKUP, "3", {"gradwire": MARKUP}, load=0.5),
        server=record.ServerFacts(MARKUP, own=False, version=MARKUP, backend=MARKUP),
        settings=LoadSettings(duration_s=1.0, warm_up_s=0.0, timeout_s=10.0),
        scenarios=[replace(one, server=seconds, warnings=[MARKUP]) for one in results],
    )
    page = to_html(document)
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own
    names = {element.tag for element in root.iter()}
    assert {"table", "svg", "path"} <= names
    assert not names & {"script", "link", "img", "iframe", "object", "base"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not attributes & {"src", "href", "srcset", "onload", "onclick", "action"}
    assert not re.search(r"url\(|@import|https?:", page)
    assert MARKUP in "".join(root.itertext())
    for flow in chain.from_iterable(result.flows for result in results):
        assert f">{flow.name}, corrected</text>" in page
        assert f"<td>{f'{flow.corrected.p99_ms:,.2f}' if flow.ok else '-'}</td>" in page
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = to_html(document)
    assert "<figure>" not in page
    assert "pip install &#34;gradwire[plot]&#34;" in page
    assert f"<td>{results[1].flows[0].corrected.p99_ms:,.2f}</td>" in page


def test_a_metrics_endpoint_tells_the_same_as_the_system(tmp_path):
    flags = ("--http-port", "127.0.0.1:0", "--workers", "2", "--backend", "numpy_cpu")
    with running_command(*flags, log=tmp_path / "log") as command:
        command.wait_for_log(" worker serves ", times=2)
        told = read_usage(f"http://{command.http_address}/metrics", {}, None)
        seen = family(command.pid)
        # The supervisor and both workers; they live on between the two looks.
        assert told.processes == len(seen) == 3
        assert anonymous(seen) / 2 < told.rss_bytes < 4 * anonymous(seen)
        assert told.cpu_s > 0


HOUR_US = 3_600_000_000
# By steps larger than the millionth of an interval that the correction lets pass.
TIMES = st.lists(st.integers(1, HOUR_US // 10).map(lambda tens: tens * 10), min_size=1, max_size=60)


def seconds(times_us):
    return np.array(times_us) / 1e6


def test_the_correction_adds_what_stalled_callers_did_not_see():
    # The example of HdrHistogram's own tests: calls of 1 ms every 10 ms, then one of 100 s.
    raw = seconds([1000] * 10_000 + [100_000_000])
    made = corrected(raw, 0.01)
    assert (len(raw), len(made)) == (10_001, 20_000)
    assert percentile(raw, 99) == pytest.approx(0.001)
    for percent, expected in ((30, 1e-3), (50, 1e-3), (75, 50), (90, 80), (99, 98), (100, 100)):
        assert percentile(made, percent) == pytest.approx(expected, rel=1e-3)
    empty = np.empty(0)
    assert (percentile(empty, 99), len(corrected(empty, 0.01)), nines(0)) == (0.0, 0, 1)
    assert corrected(seconds([1, 2]), 0.0).tolist() == [1e-6, 2e-6]


@given(TIMES, st.integers(1, 1000))
def test_the_correction_is_that_of_a_loop_over_all_times(times, interval):
    interval_us = interval * 1000 + HOUR_US // 1000
    added = [
        late for time in times for late in range(time - interval_us, interval_us - 1, -interval_us)
    ]
    made = corrected(seconds(times), interval_us / 1e6)
    np.testing.assert_allclose(np.sort(made), np.sort(seconds([*times, *added])), rtol=0, atol=1e-6)


def test_what_a_process_holds_more_and_memory_that_grows_beyond_noise_are_told():
    before = held(family(os.getpid()))
    ends = os.pipe()
    assert (held(family(os.getpid())) - before)["pipe"] == 2
    for end in ends:
        os.close(end)
    noise = 240 + np.random.default_rng(0).normal(0, 6, 600)
    for leak in (0, 80):
        grown, bound = growth(range(1, 601), (noise + np.linspace(0, leak, 600)).tolist())
        assert (grown > bound) is (leak > 0)


def test_a_generator_that_is_the_bottleneck_is_told_of():
    with serving() as server, loading(server.address) as run:
        result = run(changed(SCENARIOS["mixed"], rate=50), 0.5)
    enough = [replace(flow, ok=1000) for flow in result.flows]
    taking = [ServerSecond(second=1.0, cpu_cores=1.8, rss_mib=1.0, processes=1)]
    cases = [
        (0.1, 0.0, [], ""),
        (0.95, 0.0, [], "0.95 of one core"),
        (0.1, 1e6, [], "after they were due"),
        (0.1, 0.0, taking, "of the 2 cores"),
    ]
    for cores, late, seconds, words in cases:
        busy = [replace(one, cpu_cores=cores, late_p99_ms=late) for one in result.generators]
        told = warnings(enough, busy, seconds, cores=2)
        assert len(told) == (words != "")
        assert words in "".join(told)
