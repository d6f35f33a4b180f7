"""With certificates calls are private, and with authorities only their clients are let in."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from processes import running_command
from raw_calls import RawClient, published_request
from serving import serving


@dataclass(frozen=True, slots=True)
class Papers:
    """Certificates of one authority.

    settings   of a server with a certificate for 127.0.0.1
    authority  PEM file of the authority; roots is its content
    client     private key and certificate of one client
    """

    settings: dict[str, str]
    authority: str
    roots: bytes
    client: tuple[bytes, bytes]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder: Path = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    client = authority.issue_cert("client.test")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "chain.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return Papers(
        {"tls_certificate": str(folder / "chain.pem"), "tls_key": str(folder / "key.pem")},
        str(folder / "ca.pem"),
        authority.cert_pem.bytes(),
        (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()),
    )


@pytest.fixture(scope="module")
def private(papers: Papers) -> Iterator[str]:
    with serving(**papers.settings) as server:
        yield server.address


@pytest.fixture(scope="module")
def mutual(papers: Papers) -> Iterator[str]:
    with serving(**papers.settings, tls_client_ca=papers.authority) as server:
        yield server.address


def check_refused(address: str, credentials: grpc.ChannelCredentials | None) -> None:
    with RawClient(address, credentials) as client:
        refusal = client.evaluate(published_request(), timeout_s=5).refusal
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.UNAVAILABLE


def test_who_trusts_the_authority_is_served(private: str, papers: Papers) -> None:
    with RawClient(private, grpc.ssl_channel_credentials(papers.roots)) as client:
        client.check_alive()


def test_plain_text_is_not_taken(private: str) -> None:
    check_refused(private, None)


def test_who_trusts_another_authority_does_not_connect(private: str) -> None:
    other = trustme.CA().cert_pem.bytes()
    check_refused(private, grpc.ssl_channel_credentials(other))


def test_a_client_of_the_authority_is_let_in(mutual: str, papers: Papers) -> None:
    with RawClient(mutual, grpc.ssl_channel_credentials(papers.roots, *papers.client)) as client:
        client.check_alive()


def test_a_client_without_a_certificate_is_not_let_in(mutual: str, papers: Papers) -> None:
    check_refused(mutual, grpc.ssl_channel_credentials(papers.roots))


def test_a_client_of_another_authority_is_not_let_in(mutual: str, papers: Papers) -> None:
    stranger = trustme.CA().issue_cert("client.test")
    pair = stranger.private_key_pem.bytes(), stranger.cert_chain_pems[0].bytes()
    check_refused(mutual, grpc.ssl_channel_credentials(papers.roots, *pair))


def test_tls_opens_addresses_beyond_this_machine(tmp_path: Path, papers: Papers) -> None:
    flags = [word for name, path in papers.settings.items() for word in (f"--{name}", path)]
    flags = [word.replace("_", "-") if word.startswith("--") else word for word in flags]
    flags += ["--address", "0.0.0.0:0"]
    with running_command(*flags, log=tmp_path / "log") as command:
        port = command.address.rpartition(":")[2]
        credentials = grpc.ssl_channel_credentials(papers.roots)
        with RawClient(f"127.0.0.1:{port}", credentials) as client:
            client.check_alive()
        assert "tls=True" in command.log
        assert papers.settings["tls_key"] not in command.log


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_that_are_no_tls_leave_nothing_but_json_in_the_log(
    tmp_path: Path, papers: Papers, workers: int
) -> None:
    flags = [
        word
        for name, path in papers.settings.items()
        for word in (f"--{name.replace('_', '-')}", path)
    ]
    flags += ["--log-format", "json", "--workers", str(workers)]
    with running_command(*flags, log=tmp_path / "log") as command:
        host, _, port = command.address.rpartition(":")
        for _ in range(10):
            with socket.create_connection((host, int(port))) as junk:
                junk.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
                while junk.recv(1 << 10):
                    pass
        with RawClient(command.address, grpc.ssl_channel_credentials(papers.roots)) as client:
            client.check_alive()
        lines = command.log.splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
