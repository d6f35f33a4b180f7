"""`gradwire bench`: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.loadtest.result import from_json
from gradwire.loadtest.scenarios import PROBLEMS
from gradwire_server import LocalClient
from gradwire_server.config.tokens import Scope, add_token
from support.command_line import run, run_here
from support.relay import relaying
from support.serving import serving

SHORT = ("--duration", "0.5", "--warm-up", "0")


@pytest.mark.slow
def test_it_starts_a_server_and_writes_what_came_of_it(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "report.html"
    done = run(
        "bench", *SHORT, "--duration", 2.5, "--scenario", "medium", "--scenario", "tiny",
        "--output", found, "--report", page,
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


def test_json_is_all_that_it_prints(target: str, tmp_path: Path) -> None:
    options = ("--target", target, "--scenario", "tiny", *SHORT)
    done = run_here("bench", *options, "--json", "--output", tmp_path / "found.json")
    assert from_json(done.stdout) == from_json((tmp_path / "found.json").read_text())
    assert "Wrote" in done.stderr


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
            "bench", "--target", relay.address, "--scenario", "tiny", *SHORT, "--output", found
        )
    assert done.code == 1
    assert re.search(r"WRONG_RESULT.*FAILED", done.stdout)
    flow = from_json(found.read_text()).scenarios[0].flows[0]
    assert flow.sent == flow.wrong > 0
    assert flow.ok == 0


def test_two_files_are_compared(target: str, tmp_path: Path) -> None:
    found, other = tmp_path / "a.json", tmp_path / "b.json"
    run_here("bench", "--target", target, "--scenario", "tiny", *SHORT, "--output", found)
    value: Any = json.loads(found.read_text())
    value["scenarios"][0]["flows"][0]["calls_per_s"] *= 2
    other.write_text(json.dumps(value))
    done = run_here("bench", "--compare", found, other)
    assert done.code == 0
    assert re.search(r"tiny +tiny +2\.00 +1\.00", done.stdout)


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[[Scope], Path]:
    def add(scope: Scope) -> Path:
        shown = tmp_path / scope.value
        shown.write_text(add_token(tmp_path / "tokens", name=scope.value, scopes=[scope]))
        return shown

    return add


def test_every_manner_of_call_shows_the_token(
    tmp_path: Path, tokens: Callable[[Scope], Path]
) -> None:
    shown, looker = tokens(Scope.EVALUATE), tokens(Scope.INSPECT)
    with serving(tokens=str(tmp_path / "tokens"), warm_up=True, http_port="0") as server:
        arguments = ("bench", "--target", server.address, *SHORT)
        done = run_here(
            *arguments, "--token-file", shown,
            "--scenario", "slow-readers", "--scenario", "tiny",
        )  # fmt: skip
        assert (done.code, done.stderr) == (0, "")
        assert run_here(*arguments).code == 8
        # A token that opens no call, or not the metrics, ends it before the load.
        done = run_here(*arguments, "--token-file", looker)
        assert (done.code, done.stdout) == (8, "")
        assert "the token inspect lacks the scope evaluate" in done.stderr
        url = f"http://{server.server.instruments.address}/metrics"
        done = run_here(*arguments, "--metrics", url, "--token-file", shown)
        assert (done.code, done.stdout) == (8, "")
        assert f"--metrics {url}: the token evaluate lacks the scope inspect" in done.stderr


def test_no_server_ends_it_with_7(free_target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.cli.bench.TARGET_PATIENCE_S", 0.7)
    done = run_here("bench", "--target", free_target, *SHORT)
    assert done.code == 7
    first, last = done.stderr.splitlines()
    assert first.startswith(f"gradwire: waiting up to 0.7 s for the server at {free_target}: ")
    assert last.startswith(f"gradwire: error: no server listens at {free_target}; start one with ")


def test_metrics_that_are_none_are_found_before_the_load(target: str, free_target: str) -> None:
    url = f"http://{free_target}/metrics"
    done = run_here("bench", "--target", target, "--metrics", url, *SHORT)
    assert (done.code, done.stdout) == (1, "")
    assert url in done.stderr


def test_the_help_names_every_scenario() -> None:
    text = run_here("bench", "--help").stdout
    for name in ("tiny", "medium", "large", "mixed", "overload", "slow-readers", "cancellations"):
        assert f"  {name} " in text
