"""Whoever comes without the right papers hears what is wrong, and gets nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme

from gradwire import Client, Item
from gradwire._wire.statuses import is_lasting, with_hint
from gradwire.errors import UnavailableError
from support.clients import BILINEAR, PROMPT, Counting, Face, halved
from support.papers import Papers, impatient, pair, trusting
from support.serving import ServerThread, serving

SMALL = np.ones((1, 1, 4, 4), np.float32)
LARGE = np.ones((1, 8, 512, 512), np.float32)
ITEM = Item(BILINEAR, SMALL, (1, 1, 2, 2))
STRANGER = trustme.CA()
CLOSED = "the server closed the connection; it probably requires TLS"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def private(papers: Papers) -> Iterator[str]:
    with serving(**papers.settings) as server:
        yield server.address


@pytest.fixture(scope="module")
def mutual(papers: Papers) -> Iterator[str]:
    with serving(**papers.mutual) as server:
        yield server.address


def check_nothing(address: str, credentials: grpc.ChannelCredentials | None, words: str) -> None:
    """Assert that no kind of call is answered, and that each says why."""
    with impatient(address, credentials) as client:
        for x in (SMALL, LARGE):
            with pytest.raises(UnavailableError, match=words):
                halved(client, x)
        with pytest.raises(UnavailableError, match=words):
            list(client.evaluate_many([ITEM]))
        for ask in (client.operators, client.server_info, lambda: client.wait_ready(0.1)):
            with pytest.raises(UnavailableError, match=words):
                ask()


def test_plain_text_meets_tls(private: str, mutual: str) -> None:
    check_nothing(private, None, CLOSED)
    check_nothing(mutual, None, CLOSED)


def test_tls_meets_plain_text(server: ServerThread, papers: Papers) -> None:
    check_nothing(server.address, trusting(papers.roots), "the server does not use TLS")


def test_a_server_of_another_authority_is_not_trusted(private: str) -> None:
    roots = STRANGER.cert_pem.bytes()
    check_nothing(private, trusting(roots), "not signed by a trusted authority")


def test_a_client_without_papers_of_the_authority_is_not_let_in(
    mutual: str, papers: Papers
) -> None:
    for shown in (None, pair(STRANGER), pair(papers.authority, expired=True)):
        check_nothing(mutual, trusting(papers.roots, shown), CLOSED)
    with Client(mutual, credentials=trusting(papers.roots, pair(papers.authority))) as client:
        assert client.operators()


def test_a_server_whose_certificate_has_expired_or_is_anothers_is_not_trusted(
    tmp_path: Path,
) -> None:
    papers = Papers(tmp_path)
    papers.write(expired=True)
    with serving(**papers.settings) as server:
        check_nothing(server.address, trusting(papers.roots), "certificate has expired")
    papers.write(name="elsewhere.test")
    with serving(**papers.settings) as server:
        check_nothing(server.address, trusting(papers.roots), "does not name the host")


@pytest.mark.parametrize("wrong", ["authority", "plain"])
def test_what_waiting_does_not_mend_is_tried_twice(
    private: str, server: ServerThread, papers: Papers, wrong: str
) -> None:
    address, roots = {
        "authority": (private, STRANGER.cert_pem.bytes()),
        "plain": (server.address, papers.roots),
    }[wrong]
    counting = Counting(initial_backoff_s=0.01, max_backoff_s=0.05)
    with Client(address, credentials=trusting(roots), retry=counting) as client:
        for ask in (
            client.operators,
            lambda: halved(client, SMALL),
            lambda: halved(client, LARGE),
            lambda: list(client.evaluate_many([ITEM])),
        ):
            counting.failed.clear()
            with pytest.raises(UnavailableError) as refused:
                ask()
            assert refused.value.lasting
            assert counting.failed == [1, 2]


def test_what_waiting_does_not_mend_is_not_waited_for(
    private: str, papers: Papers, face: Face
) -> None:
    strange = trusting(STRANGER.cert_pem.bytes())
    with (
        face(private, credentials=strange) as client,
        pytest.raises(UnavailableError, match="not signed by a trusted authority") as refused,
    ):
        client.wait_ready(100_000)
    assert refused.value.lasting
    with face(private, credentials=trusting(papers.roots)) as client:
        client.wait_ready()


def test_an_authority_of_the_same_name_with_another_key_is_another() -> None:
    # What gRPC 1.85 said of one whose certificates do not tell the issuer's key.
    message = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake "
        "failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1a000064:ECDSA routines:"
        "OPENSSL_internal:BAD_SIGNATURE: certificate signature failure: OK"
    )
    assert "not signed by a trusted authority" in with_hint(message)
    assert is_lasting(message)


def test_another_server_may_still_do(private: str, server: ServerThread, papers: Papers) -> None:
    with Client(
        [server.address, private], credentials=trusting(papers.roots), retry=PROMPT
    ) as client:
        for _ in range(4):
            assert client.operators()


def test_a_certificate_that_has_expired_is_waited_for(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    papers.write(expired=True)
    with (
        serving(**papers.settings) as server,
        Client(server.address, credentials=trusting(papers.roots)) as client,
        ThreadPoolExecutor(1) as caller,
    ):
        with impatient(server.address, trusting(papers.roots)) as once:
            with pytest.raises(UnavailableError) as refused:
                once.operators()
            assert not refused.value.lasting
        answer = caller.submit(client.operators)
        papers.write()
        assert answer.result()
