"""The commands call servers with TLS, and those that let in certain clients only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from command_line import run
from gradwire.bench.document import from_json
from serving import serving

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
    folder.mkdir()
    issued = authority.issue_cert("client.test")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return "--tls-certificate", str(certificate), "--tls-key", str(key)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder: Path = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "chain.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    with serving(
        tls_certificate=str(folder / "chain.pem"),
        tls_key=str(folder / "key.pem"),
        tls_client_ca=str(folder / "ca.pem"),
        http_port="0",
    ) as server:
        yield Mutual(
            server.address,
            server.server.instruments.address,
            ("--tls-ca", str(folder / "ca.pem")),
            pair_of(authority, folder / "client"),
            pair_of(trustme.CA(), folder / "stranger"),
        )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_client_with_a_certificate_is_let_in(mutual: Mutual, command: tuple[str, ...]) -> None:
    done = run(*command, "--target", mutual.target, *mutual.authority, *mutual.pair)
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_load_test_shows_it_with_every_call_and_to_the_metrics(
    mutual: Mutual, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    done = run(
        *("bench", "--target", mutual.target, *mutual.authority, *mutual.pair),
        *("--metrics", f"https://{mutual.http}/metrics", "--json", found),
        *("--scenario", "tiny", "--scenario", "large", "--duration", 1.5, "--warm-up", 0),
    )
    assert (done.code, done.stderr) == (0, "")
    for scenario in from_json(found.read_text()).scenarios:
        assert scenario.flows[0].ok
        assert scenario.server


def test_one_without_or_of_another_authority_is_not(mutual: Mutual) -> None:
    for pair in ((), mutual.of_another):
        done = run("health", "--target", mutual.target, *mutual.authority, *pair)
        assert (done.code, done.stdout) == (7, "")
        assert done.stderr.startswith("gradwire: error: ")


def test_a_file_that_is_not_there_is_named(mutual: Mutual) -> None:
    missing = ("--tls-certificate", "nowhere.pem", *mutual.pair[2:])
    done = run("info", "--target", mutual.target, *mutual.authority, *missing)
    assert (done.code, done.stdout) == (2, "")
    assert "nowhere.pem" in done.stderr
