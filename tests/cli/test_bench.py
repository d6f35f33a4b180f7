"""`gradwire bench`: what it prints and writes, and how it ends, also before its time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from gradwire.loadtest.result import from_json
from gradwire.loadtest.scenarios import PROBLEMS
from gradwire_server import LocalClient
from gradwire_server.config.tokens import Scope, add_token
from load.soak import family
from support.command_line import run_here
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import serving

SHORT = ("--duration", "0.5", "--warm-up", "0")


@pytest.mark.slow
def test_bench_starts_a_server_and_writes_what_came_of_it(tmp_path):
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    done = run_here(
        *("bench", "--duration", 1.5, "--warm-up", 0, "--scenario", "medium"),
        *("--scenario", "tiny", "--output", found, "--report", page),
    )
    assert (done.code, done.stderr) == (0, "")
    document = from_json(found.read_text())
    assert [one.name for one in document.scenarios] == ["medium", "tiny"]
    assert document.server.own
    assert not document.interrupted
    assert any(one.cpu_cores > 0 and one.rss_mib > 0 for one in document.scenarios[1].server)
    for scenario in document.scenarios:
        assert f"{scenario.flows[0].calls_per_s:.1f}" in done.stdout
        assert f"<h2>{scenario.name}</h2>" in page.read_text()


def test_json_is_all_that_it_prints_and_two_files_are_compared(target, tmp_path):
    found, other = tmp_path / "a.json", tmp_path / "b.json"
    options = ("--target", target, "--scenario", "tiny", *SHORT)
    done = run_here("bench", *options, "--json", "--output", found)
    assert from_json(done.stdout) == from_json(found.read_text())
    assert "Wrote" in done.stderr
    value = json.loads(found.read_text())
    value["scenarios"][0]["flows"][0]["calls_per_s"] *= 2
    other.write_text(json.dumps(value))
    done = run_here("bench", "--compare", found, other)
    assert done.code == 0
    assert re.search(r"tiny +tiny +2\.00 +1\.00", done.stdout)


def test_wrong_bits_are_counted_and_end_it_with_1(target, tmp_path):
    problem = PROBLEMS["tiny"]
    with LocalClient("numpy_cpu") as local:
        result = local.evaluate(problem.operator, problem.input(), output_shape=problem.received)
    right = result.tobytes()[-64:]
    wrong = bytes((right[0] ^ 1,)) + right[1:]
    turns = iter(range(1 << 30))

    def every_third(data):
        return data.replace(right, wrong) if right in data and next(turns) % 3 == 0 else data

    found = tmp_path / "found.json"
    calling = ("--scenario", "tiny", "--concurrency", 1, "--processes", 1, *SHORT)
    with relaying(target) as relay:
        relay.alter = every_third
        done = run_here("bench", "--target", relay.address, *calling, "--output", found)
    assert done.code == 1
    assert re.search(r"WRONG_RESULT.*FAILED", done.stdout)
    flow = from_json(found.read_text()).scenarios[0].flows[0]
    assert flow.wrong == (next(turns) + 2) // 3 > 0
    assert flow.sent == flow.ok + flow.wrong


def test_every_manner_of_call_shows_the_token(tmp_path):
    shown, looker = (tmp_path / scope.value for scope in (Scope.EVALUATE, Scope.INSPECT))
    for file in (shown, looker):
        token = add_token(tmp_path / "tokens", name=file.name, scopes=[Scope(file.name)])
        file.write_text(token)
    with serving(tokens=str(tmp_path / "tokens"), warm_up=True, http_port="0") as server:
        arguments = ("bench", "--target", server.address, *SHORT)
        manners = ("--scenario", "slow-readers", "--scenario", "tiny")
        done = run_here(*arguments, "--token-file", shown, *manners)
        assert (done.code, done.stderr) == (0, "")
        assert run_here(*arguments).code == 8
        # A token that opens no call, or not the metrics, ends it before the load.
        url = f"http://{server.http_address}/metrics"
        denied = f"--metrics {url}: the token evaluate lacks the scope inspect"
        for file, more, words in (
            (looker, (), "the token inspect lacks the scope evaluate"),
            (shown, ("--metrics", url), denied),
        ):
            done = run_here(*arguments, "--token-file", file, *more)
            assert (done.code, done.stdout) == (8, "")
            assert words in done.stderr


def test_no_server_and_no_metrics_are_found_before_the_load(target, nobody, monkeypatch):
    monkeypatch.setattr("gradwire.cli.bench.TARGET_PATIENCE_S", 0.7)
    url = f"http://{nobody}/metrics"
    # The server is waited for before its metrics are.
    done = run_here("bench", "--target", nobody, "--metrics", url, *SHORT)
    assert done.code == 7
    assert f"no server listens at {nobody}; start one with " in done.stderr
    done = run_here("bench", "--target", target, "--metrics", url, *SHORT)
    assert (done.code, done.stdout) == (1, "")
    assert url in done.stderr


# Programs inherit an ignored SIGINT, and tests in the background may have it.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from gradwire import cli; cli.main()"
)
# Generous: a machine that does much else takes its time to start programs.
PATIENCE_S = 120.0
# A busy machine may not connect within the half second that a command waits without a word.
INTERRUPTED = re.compile(r"(gradwire: waiting up to .*\n)?\ngradwire: interrupted\n")


@contextmanager
def bench(*arguments):
    """Run `gradwire bench` in a process group of its own, as a terminal has it."""
    command = [sys.executable, "-c", PROGRAM, "bench", *map(str, arguments)]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process, number, *, when, later_s):
    """Send a signal to all of its group; return what was printed, once no process is left."""
    wait_until(lambda: when() or process.poll() is not None, patience_s=PATIENCE_S)
    time.sleep(later_s)
    members = family(process.pid)
    os.killpg(process.pid, number)
    printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number, printed
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members))
    return printed


either_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)


@pytest.mark.slow
@either_signal
def test_the_user_who_ends_it_gets_what_there_is(number, target, tmp_path):
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    with (
        relaying(target) as relay,
        bench(
            *("--target", relay.address, "--scenario", "tiny", "--scenario", "large"),
            *("--output", found, "--report", page),
            *("--duration", 600, "--warm-up", 0, "--processes", 2),
        ) as process,
    ):
        # Far more than the questions before the load take: some calls have ended.
        stdout, stderr = end(
            process, number, when=lambda: relay.carried_bytes > 1_000_000, later_s=0.5
        )
    assert INTERRUPTED.fullmatch(stderr)
    assert "tiny: " in stdout
    document = from_json(found.read_text())
    assert document.interrupted
    (scenario,) = document.scenarios
    assert scenario.duration_s < 60
    (flow,) = scenario.flows
    assert flow.sent == sum(outcome.count for outcome in flow.outcomes) > 0
    assert flow.sent == sum(second.made for second in flow.seconds)
    # A call that the user stopped has not failed.
    assert [outcome.status for outcome in flow.outcomes] == ["OK"]
    assert "ended the test early" in page.read_text()


@either_signal
# While the server of its own starts; while those that make calls do; all of them in warm-up.
@pytest.mark.parametrize(
    "children", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_nothing_is_written_and_left_before_a_call_counts(children, number, target, tmp_path):
    found = tmp_path / "found.json"
    options = () if children == 1 else ("--target", target, "--processes", 4)
    with bench("--scenario", "tiny", "--warm-up", 600, "--output", found, *options) as process:
        later_s = 1.0 if children > 2 else 0.0
        printed = end(
            process, number, when=lambda: len(family(process.pid)) > children, later_s=later_s
        )
        assert printed[0] == ""
        assert INTERRUPTED.fullmatch(printed[1])
    assert not found.exists()


def test_a_server_that_is_gone_ends_it_with_7(target, tmp_path):
    found = tmp_path / "found.json"
    with relaying(target) as relay, ThreadPoolExecutor(1) as pool:

        def go():
            wait_until(lambda: relay.connections > 1, patience_s=PATIENCE_S)
            time.sleep(0.3)
            relay.close()

        pool.submit(go)
        done = run_here(
            *("bench", "--target", relay.address, "--warm-up", 0, "--duration", 5),
            *("--scenario", "tiny", "--scenario", "medium", "--output", found),
        )
    assert done.code == 7
    assert done.stderr.startswith(f"gradwire: error: no server listens at {relay.address}")
    (scenario,) = from_json(found.read_text()).scenarios
    (refused,) = [one for one in scenario.flows[0].outcomes if one.status == "UNAVAILABLE"]
    # 4 callers, who pause for a quarter of a second.
    assert refused.count < 100
    assert " ms: UNAVAILABLE " in done.stdout


def test_latencies_of_no_call_are_told_as_none(target, tmp_path):
    page = tmp_path / "report.html"
    done = run_here(
        *("bench", "--target", target, "--scenario", "tiny", "--warm-up", 0),
        *("--duration", 0.3, "--timeout", 1e-6, "--report", page),
    )
    assert done.code == 1
    (row,) = [line for line in done.stdout.splitlines() if " callers " in line]
    assert row.split()[-5:] == ["-"] * 5
    assert "<td>-</td>" in page.read_text()
