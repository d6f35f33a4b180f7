"""How `gradwire bench` ends before its time: the user ends it, or the server is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradwire.loadtest.result import from_json
from load.soak import family
from support.command_line import run_here
from support.raw_calls import wait_until
from support.relay import Relay, relaying

# Whoever runs the tests in the background may have SIGINT ignored, which programs inherit.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from gradwire import cli; cli.main()"
)
# Generous: a machine that does much else takes its time to start programs.
PATIENCE_S = 120.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Run:
    """`gradwire bench` under way, in a process group of its own, as a terminal has it."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM, "bench", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._seen: set[int] = set()

    def children(self) -> set[int]:
        now = family(self.process.pid) - {self.process.pid}
        self._seen |= now
        return now

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; fail at once if the process has ended."""
        wait_until(lambda: holds() or self.process.poll() is not None, patience_s=PATIENCE_S)
        if self.process.poll() is not None:
            raise AssertionError(self.process.communicate())

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal to all of its group; return the status and what was printed."""
        self.children()
        os.killpg(self.process.pid, number)
        stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stdout, stderr

    def wait_until_nothing_is_left(self) -> None:
        """Wait until none of the processes that were seen is there."""
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self._seen))


@contextmanager
def benching(*arguments: object) -> Generator[Run]:
    run = Run(*arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=str)
def test_the_user_who_ends_it_gets_what_there_is(
    number: signal.Signals, target: str, tmp_path: Path
) -> None:
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    files = ("--output", found, "--report", page)
    scenarios = ("--scenario", "tiny", "--scenario", "large")
    with (
        relaying(target) as relay,
        benching(
            *("--target", relay.address, *scenarios, *files),
            *("--duration", 600, "--warm-up", 0, "--processes", 2),
        ) as run,
    ):
        # Far more than the questions before the load take: some calls have ended.
        run.wait_until(lambda: relay.carried_bytes > 1_000_000)
        time.sleep(0.5)
        code, stdout, stderr = run.end(number)
        run.wait_until_nothing_is_left()
    assert (code, stderr) == (CODES[number], "")
    assert "tiny: " in stdout
    document = from_json(found.read_text())
    assert document.interrupted
    (scenario,) = document.scenarios
    assert scenario.duration_s < 60
    (flow,) = scenario.flows
    assert flow.sent == sum(outcome.count for outcome in flow.outcomes) > 0
    assert flow.sent == sum(second.made for second in flow.seconds)
    # What the user stopped has not failed.
    assert [outcome.status for outcome in flow.outcomes] == ["OK"]
    assert "ended the test early" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=str)
@pytest.mark.parametrize("children", [1, 2, 5])
def test_nothing_is_written_before_a_call_counts(
    children: int, number: signal.Signals, target: str, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    with benching(
        *("--target", target, "--scenario", "tiny", "--warm-up", 600, "--output", found),
        *("--processes", 4),
    ) as run:
        # While those that make calls start, beside multiprocessing's own; all of them in warm-up.
        run.wait_until(lambda: len(run.children()) >= children)
        time.sleep(1.0 if children > 4 else 0.0)
        code, stdout, stderr = run.end(number)
        run.wait_until_nothing_is_left()
    assert (code, stdout, stderr) == (CODES[number], "", "\ngradwire: interrupted\n")
    assert not found.exists()


@pytest.mark.parametrize("number", CODES, ids=str)
def test_a_server_of_its_own_ends_with_it(number: signal.Signals) -> None:
    with benching("--scenario", "tiny", "--duration", 600) as run:
        run.wait_until(lambda: len(run.children()) >= 1)
        code, _, stderr = run.end(number)
        run.wait_until_nothing_is_left()
    assert (code, stderr) == (CODES[number], "\ngradwire: interrupted\n")


@contextmanager
def gone_under_load(relay: Relay) -> Generator[None]:
    """Have nothing listen any more where a relay does, a while after calls have come."""

    def go() -> None:
        wait_until(lambda: relay.connections > 1, patience_s=PATIENCE_S)
        time.sleep(1.0)
        relay.close()

    going = threading.Thread(target=go)
    going.start()
    try:
        yield
    finally:
        going.join()


def test_a_server_that_is_gone_ends_it_with_7(target: str, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    with relaying(target) as relay, gone_under_load(relay):
        done = run_here(
            *("bench", "--target", relay.address, "--warm-up", 0, "--duration", 5),
            *("--scenario", "tiny", "--scenario", "medium", "--output", found),
        )
    assert done.code == 7
    assert done.stderr.startswith(f"gradwire: error: {relay.address}: no server answers since")
    assert done.stderr.endswith(" of tiny; not run: medium\n")
    (scenario,) = from_json(found.read_text()).scenarios
    assert "no server answers since second" in scenario.warnings[0]
    assert f"note: {scenario.warnings[0]}" in done.stdout
    (flow,) = scenario.flows
    (refused,) = [one for one in flow.outcomes if one.status == "UNAVAILABLE"]
    # 4 callers, who pause for half a second before long.
    assert refused.count < 100
    assert " UNAVAILABLE, p50 " in done.stdout


def test_latencies_of_no_call_are_told_as_none(target: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = run_here(
        *("bench", "--target", target, "--scenario", "tiny", "--warm-up", 0),
        *("--duration", 0.3, "--timeout", 1e-6, "--report", page),
    )
    assert done.code == 1
    (row,) = [line for line in done.stdout.splitlines() if " callers " in line]
    assert row.split()[-5:] == ["-"] * 5
    assert "<td>-</td>" in page.read_text()
