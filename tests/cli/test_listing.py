"""`gradwire operators`, `info` and `health`, their servers, and how they reach them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from gradwire import Client, ops
from gradwire.cli import connection
from gradwire.errors import GradwireError, UnavailableError
from gradwire.health import health
from gradwire.loadtest.result import from_json
from gradwire_server import backends
from support.certificates import Papers
from support.certificates import pair as client_pair
from support.command_line import run, run_here
from support.raw_calls import wait_until
from support.servers import serving


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


def test_one_of_several_servers_will_do_also_from_the_environment(
    target: str, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for several in (target, f"{target},{nobody}", f"{nobody},{target}"):
        monkeypatch.setenv("GRADWIRE_TARGET", several)
        for options in ((), ("--target", several)):
            done = run_here("health", *options)
            assert (done.code, done.stdout, done.stderr) == (0, "SERVING\n", "")
            assert run_here("info", *options).code == 0
    done = run_here("health", "--target", target, "--json")
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"target": target, "status": "SERVING"}


def test_operators_are_listed_in_words_and_as_json(target: str) -> None:
    facts = json.loads(run_here("operators", "--json", "--target", target).stdout)
    with Client(target) as client:
        told = client.operators()
    listed = run_here("operators", "--target", target).stdout.splitlines()
    names = [line.split()[0] for line in listed if line][: len(ops.OPERATORS)]
    assert [each["name"] for each in facts] == [info.name for info in told] == names
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


def test_the_environment_changes_neither_log_nor_security_of_a_local_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_LOG_LEVEL", "warning")
    monkeypatch.setenv("GRADWIRE_LOG_FORMAT", "json")
    monkeypatch.setenv("GRADWIRE_TLS_CERTIFICATE", "none.pem")
    monkeypatch.setenv("GRADWIRE_TLS_KEY", "none.pem")
    with connection.local_server(backend="numpy_cpu", http=True) as server:
        assert server.http_address()


# Programs inherit an ignored SIGINT, and tests in the background may have it.
HOLDER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradwire.cli.connection import local_server
with local_server() as server:
    print(server.target, flush=True)
    input()
"""


@contextmanager
def holder() -> Generator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that holds a local server until it reads a line, and the target."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def wait_until_gone(target: str, *, within_s: float) -> None:
    def is_gone() -> bool:
        try:
            health(target, timeout_s=1)
        except UnavailableError:
            return True
        except GradwireError:
            pass  # it is on its way out
        return False

    wait_until(is_gone, patience_s=within_s)


def test_it_serves_and_is_gone_when_the_command_ends() -> None:
    with holder() as (process, target):
        assert health(target) == "SERVING"
        process.communicate("\n")
        assert process.returncode == 0
        wait_until_gone(target, within_s=1)


@pytest.mark.parametrize(("number", "within_s"), [(signal.SIGINT, 1), (signal.SIGKILL, 15)])
def test_it_does_not_outlive_a_command_that_is_ended(
    number: signal.Signals, within_s: float
) -> None:
    with holder() as (process, target):
        process.send_signal(number)
        process.wait(timeout=10)
        wait_until_gone(target, within_s=within_s)


def test_without_the_server_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MODULE", "a_package_that_is_not_there")
    done = run_here("info")
    assert done.code == 1
    assert done.stderr.count("\n") == 1
    assert 'pip install "gradwire[server]"' in done.stderr


def test_a_server_that_does_not_start_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_MAX_STREAMS", "none")
    done = run_here("info")
    assert done.code == 1
    assert done.stderr.startswith("gradwire: error: the local server did not start: ")
    assert "'none' is not a valid integer" in done.stderr


@dataclass(frozen=True, slots=True)
class Mutual:
    """A server that lets in clients of one authority, and options of commands.

    authority   what trusts the server
    pair        certificate and key of one of its clients
    of_another  of a client of another authority
    """

    target: str
    http: str
    authority: tuple[str, str]
    pair: tuple[str, ...]
    of_another: tuple[str, ...]


def pair_of(authority: trustme.CA, folder: Path) -> tuple[str, ...]:
    folder.mkdir()
    key, certificate = client_pair(authority)
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    return "--tls-certificate", f"{folder}/certificate.pem", "--tls-key", f"{folder}/key.pem"


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder = tmp_path_factory.mktemp("papers")
    papers = Papers(folder)
    with serving(**papers.mutual, http_port="0") as server:
        yield Mutual(
            server.address,
            server.http_address,
            ("--tls-ca", papers.mutual["tls_client_ca"]),
            pair_of(papers.authority, folder / "client"),
            pair_of(trustme.CA(), folder / "stranger"),
        )


@pytest.mark.parametrize("command", ["info", "health"])
def test_a_client_of_the_authority_is_let_in_and_no_other(mutual: Mutual, command: str) -> None:
    asked = (command, "--target", mutual.target, *mutual.authority)
    done = run_here(*asked, *mutual.pair)
    assert (done.code, done.stderr) == (0, "")
    for pair in ((), mutual.of_another):
        done = run_here(*asked, *pair)
        assert (done.code, done.stdout) == (7, "")
        assert done.stderr.startswith("gradwire: error: ")


@pytest.mark.slow
def test_a_load_test_shows_it_with_every_call_and_to_the_metrics(
    mutual: Mutual, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    done = run(
        *("bench", "--target", mutual.target, *mutual.authority, *mutual.pair),
        *("--metrics", f"https://{mutual.http}/metrics", "--output", found),
        *("--scenario", "tiny", "--scenario", "large", "--duration", 1.5, "--warm-up", 0),
    )
    assert (done.code, done.stderr) == (0, "")
    for scenario in from_json(found.read_text()).scenarios:
        assert scenario.flows[0].ok
        assert scenario.server


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-certificate", "--tls-key"])
def test_a_file_that_is_none_or_no_pem_is_named_before_anything_is_sent(
    mutual: Mutual, tmp_path: Path, option: str
) -> None:
    (tmp_path / "wrong.pem").write_text("no PEM")
    for name, words in (("wrong.pem", "cannot be used"), ("nowhere.pem", "does not exist")):
        papers = [*mutual.authority, *mutual.pair]
        papers[papers.index(option) + 1] = f"{tmp_path}/{name}"
        # Nobody listens there.
        done = run_here("health", "--target", "127.0.0.1:1", *papers)
        assert (done.code, done.stdout) == (2, "")
        assert option in done.stderr
        assert f"{tmp_path}/{name}" in done.stderr
        assert words in done.stderr
    mixed = (*mutual.pair[:2], *mutual.of_another[2:])
    done = run_here("health", "--target", "127.0.0.1:1", *mutual.authority, *mixed)
    assert (done.code, done.stdout) == (2, "")
    assert "--tls-certificate" in done.stderr
    assert "KEY_VALUES_MISMATCH" in done.stderr


@pytest.mark.parametrize("by_variable", [False, True])
def test_tls_trusts_the_authorities_of_the_system(
    mutual: Mutual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool
) -> None:
    if by_variable:
        monkeypatch.setenv("GRADWIRE_TLS", "1")
    call = ("info", "--target", mutual.target, *mutual.pair, *([] if by_variable else ["--tls"]))
    monkeypatch.setenv("SSL_CERT_FILE", mutual.authority[1])
    done = run_here(*call)
    assert (done.code, done.stderr) == (0, "")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    done = run_here(*call)
    assert done.code == 7
    assert "not signed by a trusted authority" in done.stderr


def test_a_server_that_is_not_trusted_is_told_of_in_one_line(
    mutual: Mutual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    asked = ("health", "--target", mutual.target, "--tls-ca", tmp_path / "other.pem")
    done = run(*asked)
    assert (done.code, done.stdout) == (7, "")
    assert done.stderr.startswith("gradwire: error: the server's certificate is not signed")
    assert done.stderr.count("\n") == 1
    # Unless the lines of gRPC are asked for.
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    assert "Handshake failed" in run(*asked).stderr
