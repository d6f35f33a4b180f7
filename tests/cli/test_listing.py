"""`gradwire operators`, `info` and `health`, their servers, and how they reach them."""

import json
import re
import signal
import subprocess
import sys
from subprocess import DEVNULL, PIPE
from typing import NamedTuple

import pytest
import trustme

from gradwire import Client, ops
from gradwire.cli import connection
from gradwire.errors import GradwireError, UnavailableError
from gradwire.health import health
from gradwire.loadtest.result import from_json
from gradwire_server import backends
from support.certificates import Papers, pair
from support.command_line import run, run_here
from support.raw_calls import wait_until
from support.servers import serving


def test_one_of_several_servers_will_do_also_from_the_environment(target, nobody, monkeypatch):
    for several in (target, f"{target},{nobody}", f"{nobody},{target}"):
        monkeypatch.setenv("GRADWIRE_TARGET", several)
        for options in ((), ("--target", several)):
            done = run_here("health", *options)
            assert (done.code, done.stdout, done.stderr) == (0, "SERVING\n", "")
            assert run_here("info", *options).code == 0
    done = run_here("health", "--target", target, "--json")
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"target": target, "status": "SERVING"}


def test_operators_are_listed_in_words_and_as_json(target):
    facts = json.loads(run_here("operators", "--json", "--target", target).stdout)
    with Client(target) as client:
        told = client.operators()
    listed = run_here("operators", "--target", target).stdout
    names = re.findall(r"^(\w+)", listed, re.MULTILINE)[: len(ops.OPERATORS)]
    assert [each["name"] for each in facts] == [info.name for info in told] == names
    assert facts[0]["attributes"][0]["allowed_values"] == [*told[0].attributes[0].allowed_values]
    assert facts[0]["data_types"] == ["float32", "float16", "bfloat16", "float64"]
    done = run_here("operators", "resample", "--target", target)
    assert done.code == 3
    assert "give one of dml_resample_grad, " in done.stderr
    # One is told as the command line takes it.
    for info in told:
        shown = run_here("operators", info.name, "--target", target).stdout
        assert re.findall(r"--attr (\w+)=", shown) == [each.name for each in info.attributes]
        axes = f"{info.min_rank} to {info.max_rank}" if info.min_rank < info.max_rank else "4"
        assert f"  axes          {axes}\n" in shown
        assert "DATA_FORMAT" not in shown
        assert "MODE_" not in shown


def test_info_tells_backend_and_limits():
    with serving(max_streams=7, stall_timeout_s=5.0) as server:
        facts = json.loads(run_here("info", "--json", "--target", server.address).stdout)
        shown = run_here("info", "--target", server.address).stdout
    fastest, _ = backends.choose("auto")
    assert facts["backend"] == fastest.name
    assert (facts["limits"]["max_streams"], facts["limits"]["stall_timeout_s"]) == (7, 5)
    assert fastest.name in shown
    assert re.search(r"^  max_message_bytes +16,777,216$", shown, re.MULTILINE)


def test_health_waits_for_a_server_only_so_long_and_says_what_for(nobody, tmp_path):
    done = run_here("health", "--target", nobody)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (7, "", 1)
    with serving(**Papers(tmp_path).settings) as server:
        for target, words in ((nobody, "no server"), (server.address, "requires TLS (credentials")):
            done = run_here("health", "--target", target, "--wait", "0.2")
            assert (done.code, done.stdout) == (7, "")
            waiting, end = done.stderr.splitlines()
            assert waiting.startswith(f"gradwire: waiting up to 0.2 s for the server at {target}: ")
            assert words in waiting
            assert words in end


# Programs inherit an ignored SIGINT, and tests in the background may have it.
HOLDER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradwire.cli.connection import local_server
with local_server() as (target, _):
    print(target, flush=True)
    input()
"""


def is_gone(target):
    try:
        health(target, timeout_s=1)
    except UnavailableError:
        return True
    except GradwireError:
        pass  # it is on its way out
    return False


@pytest.mark.parametrize(("number", "within_s"), [(signal.SIGINT, 1), (signal.SIGKILL, 15)])
def test_a_local_server_does_not_outlive_its_command(number, within_s):
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", HOLDER], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        target = process.stdout.readline().strip()
        assert health(target) == "SERVING"
        process.send_signal(number)
        process.wait(timeout=10)
        wait_until(lambda: is_gone(target), patience_s=within_s)


def test_why_there_is_no_local_server_is_said_in_one_line(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GRADWIRE_MAX_STREAMS", "none")
        wrong = run_here("info")
    assert wrong.stderr.startswith("gradwire: error: the local server did not start: ")
    assert (wrong.code, wrong.stderr.count("\n")) == (1, 1)
    assert "is not a valid integer" in wrong.stderr
    monkeypatch.setattr(connection, "SERVER", "a_package_that_is_not_there")
    explain = ("explain", "--op", "dml_resample", "--attr", "interpolation_mode=linear")
    for command in (("info",), (*explain, "--input-shape", "1", "--output-shape", "1")):
        missing = run_here(*command)
        assert (missing.code, missing.stdout, missing.stderr.count("\n")) == (1, "", 1)
        assert 'pip install "gradwire[server]' in missing.stderr


class Mutual(NamedTuple):
    """A server that lets in clients of one authority, and options of commands."""

    target: tuple[str, ...]
    http: str
    pair: tuple[str, ...]
    of_another: tuple[str, ...]


@pytest.fixture(scope="module")
def mutual(tmp_path_factory):
    papers = Papers(tmp_path_factory.mktemp("papers"))
    pairs = []
    for authority in (papers.authority, trustme.CA()):
        key, certificate = (tmp_path_factory.mktemp("pair") / name for name in ("key", "own"))
        for file, content in zip((key, certificate), pair(authority), strict=True):
            file.write_bytes(content)
        pairs.append(("--tls-certificate", str(certificate), "--tls-key", str(key)))
    with serving(**papers.mutual, http_port="0") as server:
        target = ("--target", server.address, "--tls-ca", papers.mutual["tls_client_ca"])
        yield Mutual(target, server.http_address, *pairs)


def test_a_client_of_the_authority_is_let_in_and_no_other(mutual):
    for command in ("info", "health"):
        for shown, code in ((mutual.pair, 0), ((), 7), (mutual.of_another, 7)):
            done = run_here(command, *mutual.target, *shown)
            assert (done.code, bool(done.stdout)) == (code, code == 0)
            assert done.stderr.startswith("gradwire: error: ") if code else not done.stderr


@pytest.mark.slow
def test_a_load_test_shows_it_with_every_call_and_to_the_metrics(mutual, tmp_path):
    found = tmp_path / "found.json"
    done = run_here(
        *("bench", *mutual.target, *mutual.pair),
        *("--metrics", f"https://{mutual.http}/metrics", "--output", found),
        *("--scenario", "tiny", "--scenario", "large", "--duration", 1.5, "--warm-up", 0),
    )
    assert (done.code, done.stderr) == (0, "")
    for scenario in from_json(found.read_text()).scenarios:
        assert scenario.flows[0].ok
        assert scenario.server


def test_a_file_that_is_none_or_no_pem_is_named_before_anything_is_sent(mutual, tmp_path):
    (tmp_path / "wrong.pem").write_text("no PEM")
    mixed = [*mutual.pair[:2], *mutual.of_another[2:]]
    cases = [(mixed, ["--tls-certificate", "KEY_VALUES_MISMATCH"])]
    for option in ("--tls-ca", "--tls-certificate", "--tls-key"):
        for name, words in (("wrong.pem", "cannot be used"), ("nowhere.pem", "does not exist")):
            papers = [*mutual.target, *mutual.pair]
            papers[papers.index(option) + 1] = f"{tmp_path}/{name}"
            cases.append((papers, [option, f"{tmp_path}/{name}", words]))
    for papers, told in cases:
        # Nobody listens there.
        done = run_here("health", *mutual.target, *papers, "--target", "127.0.0.1:1")
        assert (done.code, done.stdout) == (2, "")
        assert all(word in done.stderr for word in told), done.stderr


def test_tls_trusts_the_authorities_of_the_system(mutual, tmp_path, monkeypatch):
    call = ("info", *mutual.target[:2], *mutual.pair)
    monkeypatch.setenv("SSL_CERT_FILE", mutual.target[3])
    for option, variable in ((["--tls"], ""), ([], "1")):
        monkeypatch.setenv("GRADWIRE_TLS", variable)
        done = run_here(*call, *option)
        assert (done.code, done.stderr) == (0, "")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    done = run(*call)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (7, "", 1)
    assert done.stderr.startswith("gradwire: error: the server's certificate is not signed")
