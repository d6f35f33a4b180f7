"""Latencies and their correction, and what is seen of a server's processes."""

import os
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import AsyncClient
from gradwire.errors import PermissionDeniedError
from gradwire.loadtest.generator import LoadSettings, percentile
from gradwire.loadtest.result import corrected, nines
from gradwire.loadtest.runner import Runner, Usage, read_usage
from gradwire.loadtest.scenarios import Flow, Scenario
from load.soak import anonymous, family, growth, held
from support.processes import running_command


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


def test_a_sample_that_fails_does_not_end_those_after_it(nobody, monkeypatch):
    monkeypatch.setattr("gradwire.loadtest.runner.INTERVAL_S", 0.05)
    failures = [None, PermissionDeniedError("no"), OSError("gone")]

    def probe():
        if failures and (failure := failures.pop(0)):
            raise failure
        return Usage(0.0, 1.0, 1)

    flow = Flow("tiny", "tiny", callers=1)
    with Runner(partial(AsyncClient, nobody), show=lambda _: None, probe=probe) as runner:
        result = runner.run(Scenario("tiny", "", (flow,)), LoadSettings(0.5, 0.0, 1.0))
    assert len(result.server) > 1


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
