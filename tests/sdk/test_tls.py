"""Whoever comes without the right papers hears what is wrong, and gets nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
import trustme

from gradwire import (
    AsyncClient,
    Client,
    InvalidRequestError,
    Item,
    RetryPolicy,
    UnavailableError,
    ops,
)
from gradwire._wire.statuses import is_lasting, with_hint
from gradwire.health import health
from papers import Papers, impatient, pair, trusting
from serving import serving

OPERATOR = ops.InterpolateBackward(mode="nearest", data_format="NCX")
SMALL = np.ones((1, 1, 4, 4), np.float32)
LARGE = np.ones((1, 8, 512, 512), np.float32)
STRANGER = trustme.CA()
PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
HUNG_UP = "the server hung up, as one does that wants TLS"


class Counting(RetryPolicy):
    """Notes how many tries have failed."""

    failed: ClassVar[list[int]] = []

    def backoff_s(self, failures: int, *, draw: float) -> float:
        """Note the number, and pause as usual."""
        self.failed.append(failures)
        return super().backoff_s(failures, draw=draw)


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


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with serving() as server:
        yield server.address


def check_nothing(address: str, credentials: grpc.ChannelCredentials | None, words: str) -> None:
    """Assert that no kind of call is answered, and that each says why."""
    with impatient(address, credentials) as client:
        for x in (SMALL, LARGE):
            shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
            with pytest.raises(UnavailableError, match=words):
                client.evaluate(OPERATOR, x, output_shape=shape)
        with pytest.raises(UnavailableError, match=words):
            list(client.evaluate_many([Item(OPERATOR, SMALL, (1, 1, 2, 2))]))
        for ask in (client.operators, client.server_info, lambda: client.wait_ready(0.1)):
            with pytest.raises(UnavailableError, match=words):
                ask()


def test_plain_text_meets_tls(private: str, mutual: str) -> None:
    check_nothing(private, None, HUNG_UP)
    check_nothing(mutual, None, HUNG_UP)


def test_tls_meets_plain_text(plain: str, papers: Papers) -> None:
    check_nothing(plain, trusting(papers.roots), "the server speaks plain text")


def test_a_server_of_another_authority_is_not_trusted(private: str) -> None:
    roots = STRANGER.cert_pem.bytes()
    check_nothing(private, trusting(roots), "of no authority trusted here")


def test_a_client_without_papers_of_the_authority_is_not_let_in(
    mutual: str, papers: Papers
) -> None:
    for shown in (None, pair(STRANGER), pair(papers.authority, expired=True)):
        check_nothing(mutual, trusting(papers.roots, shown), HUNG_UP)
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
        check_nothing(server.address, trusting(papers.roots), "is for other names")


@pytest.mark.parametrize("wrong", ["authority", "plain"])
def test_what_waiting_does_not_mend_is_tried_twice(
    private: str, plain: str, papers: Papers, wrong: str
) -> None:
    address, roots = {
        "authority": (private, STRANGER.cert_pem.bytes()),
        "plain": (plain, papers.roots),
    }[wrong]
    counting = Counting(initial_backoff_s=0.01, max_backoff_s=0.05)
    with Client(address, credentials=trusting(roots), retry=counting) as client:
        for ask in (
            client.operators,
            lambda: client.evaluate(OPERATOR, SMALL, output_shape=(1, 1, 2, 2)),
            lambda: client.evaluate(OPERATOR, LARGE, output_shape=(1, 8, 256, 256)),
            lambda: list(client.evaluate_many([Item(OPERATOR, SMALL, (1, 1, 2, 2))])),
        ):
            counting.failed.clear()
            with pytest.raises(UnavailableError) as refused:
                ask()
            assert refused.value.lasting
            assert counting.failed == [1, 2]


async def _wait_in_vain(address: str, credentials: grpc.ChannelCredentials) -> None:
    async with AsyncClient(address, credentials=credentials) as client:
        await client.wait_ready(100_000)


def test_what_waiting_does_not_mend_is_not_waited_for(private: str, papers: Papers) -> None:
    strange = trusting(STRANGER.cert_pem.bytes())
    with Client(private, credentials=strange) as client, pytest.raises(UnavailableError) as refused:
        client.wait_ready(100_000)
    assert refused.value.lasting
    with pytest.raises(UnavailableError, match="of no authority trusted here"):
        asyncio.run(_wait_in_vain(private, strange))
    with Client(private, credentials=trusting(papers.roots)) as client:
        client.wait_ready()


def test_an_authority_of_the_same_name_with_another_key_is_another() -> None:
    # What gRPC 1.85 said of one whose certificates do not tell the issuer's key.
    message = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake "
        "failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1a000064:ECDSA routines:"
        "OPENSSL_internal:BAD_SIGNATURE: certificate signature failure: OK"
    )
    assert "of no authority trusted here" in with_hint(message)
    assert is_lasting(message)


def test_another_server_may_still_do(private: str, plain: str, papers: Papers) -> None:
    with Client([plain, private], credentials=trusting(papers.roots), retry=PROMPT) as client:
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


@pytest.mark.parametrize("wrong", [b"-----BEGIN CERTIFICATE-----", "roots.pem", True])
def test_credentials_that_are_none_are_refused_and_not_shown(wrong: Any) -> None:
    for make in (
        lambda: Client("127.0.0.1:1", credentials=wrong),
        lambda: AsyncClient("127.0.0.1:1", credentials=wrong),
        lambda: health("127.0.0.1:1", credentials=wrong),
    ):
        with pytest.raises(InvalidRequestError, match=r"ssl_channel_credentials\(\)") as refused:
            make()
        assert refused.value.field == "credentials"
        assert type(wrong).__name__ in str(refused.value)
        assert str(wrong) not in str(refused.value)
