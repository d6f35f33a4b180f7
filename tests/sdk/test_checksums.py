"""Clients send checksums where plain text leaves the machine, and take only what matches."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import Client, DataLossError, GradwireError, Item, ops
from gradwire._core.options import Options
from gradwire._wire import checksums
from gradwire.errors import InvalidRequestError
from support.clients import ONCE, PROMPT, Face, half
from support.relay import relaying
from support.servers import ServerThread

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SMALL = np.arange(2048, dtype=np.float32).reshape(1, 2, 32, 32)
LARGE = np.arange(1 << 19, dtype=np.float32).reshape(1, 2, 512, 512)
LOCAL = Options(target=["127.0.0.1:1"])


def results(client: Any) -> list[bytes]:
    """Evaluate by each RPC."""
    many = client.evaluate_many(Item(LINEAR, each, half(each)) for each in [SMALL] * 5)
    singles = [client.evaluate(LINEAR, each, output_shape=half(each)) for each in (SMALL, LARGE)]
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
    assert Options(target=target).checking.is_on is on
    assert not Options(target=target, credentials=object()).checking.is_on
    assert Options(target=target, checksums=True).checking.is_on
    assert not Options(target=target, checksums=False).checking.is_on


@pytest.mark.parametrize(("word", "on"), [("1", True), ("0", False), ("true", True)])
def test_the_variable_decides_without_the_argument(
    monkeypatch: pytest.MonkeyPatch, word: str, *, on: bool
) -> None:
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", word)
    assert replace(LOCAL).checking.is_on is on
    assert replace(LOCAL, checksums=not on).checking.is_on is not on


def test_another_word_in_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", "maybe")
    with pytest.raises(InvalidRequestError, match="GRADWIRE_CHECKSUMS"):
        replace(LOCAL)


def test_results_with_and_without_checksums_are_the_same(
    server: ServerThread, plain: Client, face: Face
) -> None:
    with face(server.address, checksums=True) as checked:
        assert results(checked) == results(plain)


def test_a_server_that_knows_no_checksums_gets_none(
    server: ServerThread,
    plain: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Client(server.address, checksums=True) as client:
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
            items = [Item(LINEAR, SMALL + each, half(SMALL)) for each in range(40)]
            assert len(list(client.evaluate_many(items))) == len(items)
        else:
            array = (SMALL, LARGE)[first]
            assert client.evaluate(LINEAR, array, output_shape=half(array)).any()


def test_a_missing_build_turns_them_off_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checksums, "AVAILABLE", False)
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert not Options(target=["name:1"]).checking.is_on
    assert "google-crc32c" in caplog.text


@pytest.mark.parametrize("up", [True, False], ids=["request", "result"])
@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_a_changed_byte_of_data_is_an_error_that_is_retried(
    server: ServerThread, plain: Client, array: NDArray[Any], *, up: bool
) -> None:
    # Powers of two survive the halving: the mark is found on its way in both directions.
    marked = np.full_like(array, 2.0**-77)
    pattern = np.float32(2.0**-77 * (1 if up else 4)).tobytes() * 8
    left: list[int] = []

    def change(block: bytes) -> bytes:
        if left and pattern in block:
            left.pop()
            at = block.index(pattern)
            return block[: at + 1] + b"\x55" + block[at + 2 :]
        return block

    with relaying(server.address) as relay:
        setattr(relay, "alter_up" if up else "alter", change)
        left.append(1)
        with Client(relay.address, checksums=True, retry=ONCE) as client:
            with pytest.raises(DataLossError) as caught:
                client.evaluate(LINEAR, marked, output_shape=half(marked))
            assert caught.value.reason == "CHECKSUM_MISMATCH"
            assert isinstance(caught.value, GradwireError)
        left += [1, 2]
        with Client(relay.address, checksums=True, retry=PROMPT) as client:
            result = client.evaluate(LINEAR, marked, output_shape=half(marked))
        assert not left
    expected = plain.evaluate(LINEAR, marked, output_shape=half(marked))
    assert result.tobytes() == expected.tobytes()
