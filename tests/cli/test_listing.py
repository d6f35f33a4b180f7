"""`gradwire operators`, `info` and `health`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradwire import Client, ops
from gradwire_server import backends
from support.command_line import run, run_here
from support.papers import Papers
from support.serving import serving


def test_operators_lists_every_operator_of_the_server(target: str) -> None:
    done = run_here("operators", "--target", target)
    assert done.code == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines() if line][: len(ops.OPERATORS)]
    assert listed == list(ops.OPERATORS)


@pytest.mark.parametrize("name", ops.OPERATORS)
def test_an_operator_is_told_as_the_command_line_takes_it(target: str, name: str) -> None:
    done = run_here("operators", name, "--target", target)
    assert done.code == 0, done.stderr
    with Client(target) as client:
        (info,) = (each for each in client.operators() if each.name == name)
    assert [
        line.split("=")[0].split()[1] for line in done.stdout.splitlines() if "--attr" in line
    ] == [attribute.name for attribute in info.attributes]
    axes = f"{info.min_rank} to {info.max_rank}" if info.min_rank < info.max_rank else "4"
    assert f"  axes          {axes}\n" in done.stdout
    assert "DATA_FORMAT" not in done.stdout
    assert "MODE_" not in done.stdout


def test_the_environment_names_the_server(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_TARGET", target)
    assert run_here("health").stdout == "SERVING\n"
    assert run_here("info").code == 0


def test_what_names_no_server_is_blamed_on_who_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_TARGET", " , ")
    done = run_here("info")
    assert (done.code, done.stdout) == (2, "")
    assert "'--target' (env var: 'GRADWIRE_TARGET'): is ' , '; give a server's" in done.stderr


def test_one_of_several_servers_will_do(target: str, free_target: str) -> None:
    for several in (f"{target},{free_target}", f"{free_target},{target}"):
        assert run_here("health", "--target", several).stdout == "SERVING\n"
        assert run_here("info", "--target", several).code == 0


def test_operators_as_json_hold_what_the_server_tells(target: str) -> None:
    facts = json.loads(run_here("operators", "--json", "--target", target).stdout)
    with Client(target) as client:
        told = client.operators()
    assert [each["name"] for each in facts] == [info.name for info in told]
    assert facts[0]["attributes"][0]["allowed_values"] == [*told[0].attributes[0].allowed_values]
    assert facts[0]["data_types"] == ["float32", "float16", "bfloat16", "float64"]


def test_an_operator_the_server_lacks_ends_with_code_3(target: str) -> None:
    done = run_here("operators", "resample", "--target", target)
    assert done.code == 3
    assert "it has dml_resample_grad, " in done.stderr


def test_info_tells_backend_and_limits() -> None:
    with serving(max_streams=7, max_in_flight=9, stall_timeout_s=5.0) as server:
        facts = json.loads(run_here("info", "--json", "--target", server.address).stdout)
        shown = run_here("info", "--target", server.address).stdout
    fastest, _ = backends.choose("auto")
    assert facts["backend"] == fastest.name
    assert facts["limits"]["max_streams"] == 7
    assert facts["limits"]["stall_timeout_s"] == 5
    assert facts["limits"]["max_in_flight"] == 9
    assert facts["limits"]["max_message_bytes"] == 16 << 20
    assert fastest.name in shown
    assert "stall_timeout_s" in shown
    assert re.search(r"^  max_message_bytes +16,777,216$", shown, re.MULTILINE)


def test_health_of_a_serving_server_is_code_0(target: str) -> None:
    done = run("health", "--target", target)
    assert (done.code, done.stdout, done.stderr) == (0, "SERVING\n", "")


def test_health_as_json_tells_the_server_and_its_status(target: str) -> None:
    done = run_here("health", "--target", target, "--json")
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"target": target, "status": "SERVING"}


def test_health_waits_for_a_server_only_so_long() -> None:
    with serving() as server:
        gone = server.address
    for options, waits in (((), 0), (("--wait", "0.2"), 1)):
        done = run_here("health", "--target", gone, *options)
        assert (done.code, done.stdout) == (7, "")
        assert done.stderr.count("\n") == 1 + waits
        waiting = f"gradwire: waiting up to 0.2 s for the server at {gone}: "
        assert done.stderr.count(waiting) == waits


def test_health_says_at_once_that_tls_is_wanted(tmp_path: Path) -> None:
    with serving(**Papers(tmp_path).settings) as server:
        done = run_here("health", "--target", server.address, "--wait", "0.2")
    assert done.code == 7
    waiting, end = done.stderr.splitlines()
    assert waiting.startswith(f"gradwire: waiting up to 0.2 s for the server at {server.address}: ")
    assert "requires TLS (credentials, --tls-ca)" in waiting
    assert "requires TLS (credentials, --tls-ca)" in end
