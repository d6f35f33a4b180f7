"""Clients send checksums where plain text leaves the machine, and take only what matches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, DataLossError, GradwireError, Item, RetryPolicy, ops
from gradwire._core.options import Checking, Options
from gradwire._wire import checksums
from gradwire.errors import InvalidRequestError
from support.relay import relaying
from support.serving import ServerThread, serving

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SMALL = np.arange(2048, dtype=np.float32).reshape(1, 2, 32, 32)
LARGE = np.arange(1 << 19, dtype=np.float32).reshape(1, 2, 512, 512)
ONCE = RetryPolicy(max_attempts=1)
PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.02, max_attempts=20)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


def halved(array: NDArray[Any]) -> tuple[int, ...]:
    return (*array.shape[:2], array.shape[2] // 2, array.shape[3] // 2)


def results(client: Client) -> list[bytes]:
    many = client.evaluate_many(Item(LINEAR, each, halved(each)) for each in [SMALL] * 5)
    singles = [client.evaluate(LINEAR, each, output_shape=halved(each)) for each in (SMALL, LARGE)]
    return [each.tobytes() for each in (*singles, *many)]


@pytest.mark.parametrize(
    ("target", "on"),
    [
        (["127.0.0.1:1"], False),
        (["localhost:1"], False),
        (["unix:/tmp/name"], False),
        (["10.0.0.1:1"], True),
        (["dns:///name:1"], True),
        (["127.0.0.1:1", "name:1"], True),
    ],
)
def test_checksums_are_on_where_plain_text_leaves_the_machine(
    target: list[str], *, on: bool
) -> None:
    assert Checking(Options(target=target)).is_on is on
    assert not Checking(Options(target=target, credentials=object())).is_on
    assert Checking(Options(target=target, checksums=True)).is_on
    assert not Checking(Options(target=target, checksums=False)).is_on


@pytest.mark.parametrize(("word", "on"), [("1", True), ("0", False), ("true", True)])
def test_the_variable_decides_without_the_argument(
    monkeypatch: pytest.MonkeyPatch, word: str, *, on: bool
) -> None:
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", word)
    assert Checking(Options(target=["127.0.0.1:1"])).is_on is on
    assert Checking(Options(target=["127.0.0.1:1"], checksums=not on)).is_on is not on


def test_another_word_in_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", "maybe")
    with pytest.raises(InvalidRequestError, match="GRADWIRE_CHECKSUMS"):
        Checking(Options(target=["127.0.0.1:1"]))


def test_results_with_and_without_checksums_are_the_same(server: ServerThread) -> None:
    with Client(server.address, checksums=True) as checked, Client(server.address) as plain:
        assert results(checked) == results(plain)


def test_asyncio_s_client_uses_them_too(server: ServerThread) -> None:
    async def evaluate() -> bytes:
        async with AsyncClient(server.address, checksums=True) as client:
            result = await client.evaluate(LINEAR, LARGE, output_shape=halved(LARGE))
            return result.tobytes()

    with Client(server.address) as plain:
        assert asyncio.run(evaluate()) == results(plain)[1]


def test_a_server_that_knows_no_checksums_gets_none(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(server.address, checksums=True) as client, Client(server.address) as plain:
        expected = results(plain)
        client.wait_ready()
        monkeypatch.setattr("gradwire_server.rpc.codec.checksums.AVAILABLE", False)
        with caplog.at_level(logging.WARNING, "gradwire"):
            assert results(client) == results(client) == expected
        own = [each for each in caplog.records if each.name == "gradwire"]
        assert [each.message for each in own] == ["no checksums: a server does not know them"]


@pytest.mark.parametrize("first", range(3), ids=["small", "large", "many"])
def test_each_rpc_learns_that_a_server_knows_none(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    with Client(server.address, checksums=True) as client:
        client.wait_ready()
        monkeypatch.setattr("gradwire_server.rpc.codec.checksums.AVAILABLE", False)
        if first == 2:
            items = [Item(LINEAR, SMALL + each, halved(SMALL)) for each in range(40)]
            assert len(list(client.evaluate_many(items))) == len(items)
        else:
            array = (SMALL, LARGE)[first]
            assert client.evaluate(LINEAR, array, output_shape=halved(array)).any()


def test_a_missing_build_turns_them_off_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checksums, "AVAILABLE", False)
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert not Checking(Options(target=["name:1"])).is_on
    assert "google-crc32c" in caplog.text


@pytest.mark.parametrize("up", [True, False], ids=["request", "result"])
@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_a_changed_byte_of_data_is_an_error_that_is_retried(
    server: ServerThread, array: NDArray[Any], *, up: bool
) -> None:
    marked = array.copy()
    # Powers of two survive the halving: the mark is found on its way in both directions.
    marked[...] = 2.0**-77
    pattern = np.float32(2.0**-77 * (1 if up else 4)).tobytes() * 8

    left: list[int] = []

    def change(block: bytes) -> bytes:
        if left and pattern in block:
            left.pop()
            at = block.index(pattern)
            return block[: at + 1] + b"\x55" + block[at + 2 :]
        return block

    with relaying(server.address) as relay:
        if up:
            relay.alter_up = change
        else:
            relay.alter = change
        left.append(1)
        with Client(relay.address, checksums=True, retry=ONCE) as client:
            with pytest.raises(DataLossError) as caught:
                client.evaluate(LINEAR, marked, output_shape=halved(marked))
            assert caught.value.reason == "CHECKSUM_MISMATCH"
            assert isinstance(caught.value, GradwireError)
        left += [1, 2]
        with Client(relay.address, checksums=True, retry=PROMPT) as client:
            result = client.evaluate(LINEAR, marked, output_shape=halved(marked))
        assert not left
        with Client(server.address) as plain:
            expected = plain.evaluate(LINEAR, marked, output_shape=halved(marked))
    assert result.tobytes() == expected.tobytes()
