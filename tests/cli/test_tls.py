"""The commands call servers with TLS, and those that let in certain clients only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from gradwire.loadtest.result import from_json
from support.command_line import run, run_here
from support.papers import Papers
from support.papers import pair as client_pair
from support.serving import serving

COMMANDS = [("info",), ("health",)]


@dataclass(frozen=True, slots=True)
class Mutual:
    """A server that lets in clients of one authority, and the options for one of them."""

    target: str
    http: str
    authority: tuple[str, str]
    pair: tuple[str, str, str, str]
    of_another: tuple[str, str, str, str]


def pair_of(authority: trustme.CA, folder: Path) -> tuple[str, str, str, str]:
    key, certificate = client_pair(authority)
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    return (
        "--tls-certificate",
        str(folder / "certificate.pem"),
        "--tls-key",
        str(folder / "key.pem"),
    )


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder = tmp_path_factory.mktemp("papers")
    papers = Papers(folder)
    with serving(**papers.mutual, http_port="0") as server:
        yield Mutual(
            server.address,
            server.server.instruments.address,
            ("--tls-ca", papers.mutual["tls_client_ca"]),
            pair_of(papers.authority, folder / "client"),
            pair_of(trustme.CA(), folder / "stranger"),
        )


@pytest.fixture
def other(tmp_path: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    return tmp_path / "other.pem"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_client_with_a_certificate_is_let_in(mutual: Mutual, command: tuple[str, ...]) -> None:
    done = run_here(*command, "--target", mutual.target, *mutual.authority, *mutual.pair)
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.parametrize("by_variable", [False, True])
def test_tls_trusts_the_authorities_of_the_system(
    mutual: Mutual, other: Path, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool
) -> None:
    if by_variable:
        monkeypatch.setenv("GRADWIRE_TLS", "1")
    call = ("info", "--target", mutual.target, *mutual.pair, *([] if by_variable else ["--tls"]))
    monkeypatch.setenv("SSL_CERT_FILE", mutual.authority[1])
    done = run_here(*call)
    assert (done.code, done.stderr) == (0, "")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    done = run_here(*call)
    assert done.code == 7
    assert "not signed by a trusted authority" in done.stderr


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


def test_one_without_or_of_another_authority_is_not(mutual: Mutual) -> None:
    for pair in ((), mutual.of_another):
        done = run_here("health", "--target", mutual.target, *mutual.authority, *pair)
        assert (done.code, done.stdout) == (7, "")
        assert done.stderr.startswith("gradwire: error: ")


def test_a_file_that_is_not_there_is_named(mutual: Mutual) -> None:
    missing = ("--tls-certificate", "nowhere.pem", *mutual.pair[2:])
    done = run_here("info", "--target", mutual.target, *mutual.authority, *missing)
    assert (done.code, done.stdout) == (2, "")
    assert "nowhere.pem" in done.stderr


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-certificate", "--tls-key"])
def test_a_file_that_is_no_pem_is_named_before_anything_is_sent(
    mutual: Mutual, tmp_path: Path, option: str
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no PEM")
    papers = [*mutual.authority, *mutual.pair]
    papers[papers.index(option) + 1] = str(wrong)
    # Nobody listens there.
    done = run_here("health", "--target", "127.0.0.1:1", *papers)
    assert (done.code, done.stdout) == (2, "")
    assert f"{option} {wrong}" in done.stderr
    assert "cannot be used" in done.stderr


def test_a_certificate_that_does_not_belong_to_its_key_is_named(mutual: Mutual) -> None:
    mixed = (*mutual.pair[:2], *mutual.of_another[2:])
    done = run_here("health", "--target", "127.0.0.1:1", *mutual.authority, *mixed)
    assert (done.code, done.stdout) == (2, "")
    assert "--tls-certificate" in done.stderr
    assert "KEY_VALUES_MISMATCH" in done.stderr


def test_a_server_that_is_not_trusted_is_told_of_in_one_line(
    mutual: Mutual, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in COMMANDS:
        done = run(*command, "--target", mutual.target, "--tls-ca", other)
        assert (done.code, done.stdout) == (7, "")
        assert done.stderr.startswith("gradwire: error: the server's certificate is not signed")
        assert done.stderr.count("\n") == 1
    # Unless the lines of gRPC are asked for.
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    done = run("health", "--target", mutual.target, "--tls-ca", other)
    assert "Handshake failed" in done.stderr
