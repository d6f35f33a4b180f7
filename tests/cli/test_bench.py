"""`gradwire bench`: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import GRADWIRE, run, run_here
from gradwire.bench.document import from_json
from gradwire.bench.problems import PROBLEMS
from gradwire_server import LocalClient
from gradwire_server.tokens import Scope, add_token
from raw_calls import wait_until
from relay import relaying
from serving import serving

SHORT = ("--duration", "0.5", "--warm-up", "0")


def test_it_starts_a_server_and_writes_what_came_of_it(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    done = run(
        "bench", *SHORT, "--duration", 2.5, "--scenario", "medium", "--scenario", "tiny",
        "--json", found, "--report", page,
    )  # fmt: skip
    assert (done.code, done.stderr) == (0, "")
    document = from_json(found.read_text())
    assert [one.name for one in document.scenarios] == ["medium", "tiny"]
    assert document.server.own
    assert not document.interrupted
    assert any(one.cpu_cores > 0 and one.rss_mib > 0 for one in document.scenarios[1].server)
    for scenario in document.scenarios:
        assert f"{scenario.flows[0].calls_per_s:.1f}" in done.stdout
        assert f"<h2>{scenario.name}</h2>" in page.read_text()


def test_wrong_bits_end_it_with_1(target: str, tmp_path: Path) -> None:
    problem = PROBLEMS["tiny"]
    with LocalClient("numpy_cpu") as local:
        result = local.evaluate(problem.operator, problem.input(), output_shape=problem.received)
    right = result.tobytes()[:64]
    wrong = bytes((right[0] ^ 1,)) + right[1:]
    found = tmp_path / "found.json"
    with relaying(target) as relay:
        relay.alter = lambda data: data.replace(right, wrong)
        done = run_here(
            "bench", "--target", relay.address, "--scenario", "tiny", *SHORT, "--json", found
        )
    assert done.code == 1
    assert re.search(r"WRONG_RESULT.*FAILED", done.stdout)
    flow = from_json(found.read_text()).scenarios[0].flows[0]
    assert flow.sent == flow.wrong > 0
    assert flow.ok == 0


def test_the_user_who_ends_it_gets_what_there_is(target: str, tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    # Whoever runs the tests in the background may have SIGINT ignored, which programs inherit.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from gradwire import cli; cli.main()"
    )
    with (
        relaying(target) as relay,
        subprocess.Popen(  # noqa: S603 - our own program
            [
                *(sys.executable, "-c", program, "bench", "--target", relay.address),
                *("--scenario", "tiny", "--scenario", "large", "--duration", "600"),
                *("--warm-up", "0", "--json", str(found), "--report", str(page)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        # One to see whether the server serves, then those that make calls.
        wait_until(lambda: relay.connections > 1)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    document = from_json(found.read_text())
    assert document.interrupted
    (scenario,) = document.scenarios
    assert scenario.duration_s < 60
    (flow,) = scenario.flows
    assert flow.sent == sum(outcome.count for outcome in flow.outcomes) > 0
    assert "ended the test early" in page.read_text()


def test_two_files_are_compared(target: str, tmp_path: Path) -> None:
    found, other = tmp_path / "a.json", tmp_path / "b.json"
    run_here("bench", "--target", target, "--scenario", "tiny", *SHORT, "--json", found)
    value: Any = json.loads(found.read_text())
    value["scenarios"][0]["flows"][0]["calls_per_s"] *= 2
    other.write_text(json.dumps(value))
    done = run_here("bench", "--compare", found, other)
    assert done.code == 0
    assert re.search(r"tiny +tiny +2\.00 +1\.00", done.stdout)
    other.write_text("{}")
    done = run_here("bench", "--compare", found, other)
    assert done.code == 2
    assert "is missing" in done.stderr


def test_every_manner_of_call_shows_the_token(tmp_path: Path) -> None:
    tokens, shown = tmp_path / "tokens", tmp_path / "token"
    shown.write_text(add_token(tokens, name="load", scopes=[Scope.EVALUATE]))
    with serving(tokens=str(tokens), warm_up=True) as server:
        arguments = ("bench", "--target", server.address, *SHORT)
        done = run_here(
            *arguments, "--token-file", shown,
            "--scenario", "slow-readers", "--scenario", "tiny",
        )  # fmt: skip
        assert (done.code, done.stderr) == (0, "")
        assert run_here(*arguments).code == 8


def test_no_server_ends_it_with_7(free_target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.cli.benching.TARGET_PATIENCE_S", 0.5)
    done = run_here("bench", "--target", free_target, *SHORT)
    assert done.code == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "5", "--concurrency", "2"), "exclude each other"),
        (("--metrics", "http://127.0.0.1:1/metrics"), "--metrics is for a --target"),
        (("--metrics", "file:///etc/hosts", "--target", "127.0.0.1:1"), "is no URL"),
        (("--scenario", "huge"), "huge"),
        (("--duration", "0"), "--duration"),
        (("--report", "missing/report.html"), "is in a folder that does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_call(
    arguments: tuple[str, ...], words: str
) -> None:
    done = run_here("bench", *arguments)
    assert done.code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_names_every_scenario() -> None:
    text = subprocess.run(  # noqa: S603 - our own program
        [*GRADWIRE, "bench", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for name in ("tiny", "medium", "large", "mixed", "overload", "slow-readers", "cancellations"):
        assert f"  {name} " in text
