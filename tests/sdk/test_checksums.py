"""Clients send checksums where plain text leaves the machine, and take only what matches."""

import logging

import grpc
import numpy as np
import pytest

from gradwire import Client, DataLossError, GradwireError, Item
from gradwire._wire import checksums
from gradwire.errors import InvalidRequestError
from support.clients import BILINEAR, ONCE, PROMPT, half, halved
from support.relay import relaying

SMALL = np.arange(2048, dtype=np.float32).reshape(1, 2, 32, 32)
LARGE = np.arange(1 << 19, dtype=np.float32).reshape(1, 2, 512, 512)


def are_on(**options):
    return vars(Client(**options))["_options"].sends_checksums


def test_checksums_are_on_where_plain_text_leaves_the_machine(monkeypatch, caplog):
    here = ["127.0.0.1:1"], ["localhost:1"], ["unix:/tmp/name"]
    there = ["10.0.0.1:1"], ["dns:///name:1"], ["127.0.0.1:1", "name:1"]
    for target in (*here, *there):
        assert are_on(target=target) is (target in there)
        assert not are_on(target=target, credentials=grpc.ssl_channel_credentials())
        assert are_on(target=target, checksums=True)
        assert not are_on(target=target, checksums=False)
    for word, on in (("1", True), ("0", False), ("true", True)):
        monkeypatch.setenv("GRADWIRE_CHECKSUMS", word)
        assert are_on(target=here[0]) is on
        assert are_on(target=here[0], checksums=not on) is not on
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", "maybe")
    with pytest.raises(InvalidRequestError, match="GRADWIRE_CHECKSUMS"):
        Client(here[0])
    monkeypatch.delenv("GRADWIRE_CHECKSUMS")
    # Without a compiled build of the function it is too slow.
    monkeypatch.setattr(checksums, "AVAILABLE", False)
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert not are_on(target=there[0])
    assert "google-crc32c" in caplog.text


MANY = [Item(BILINEAR, SMALL + each, half(SMALL)) for each in range(40)]
ASKS = {
    "small": lambda client: [halved(client, SMALL)],
    "large": lambda client: [halved(client, LARGE)],
    "many": lambda client: list(client.evaluate_many(MANY)),
}


# Whichever RPC it is that learns it.
@pytest.mark.parametrize("first", ASKS)
def test_results_are_the_same_also_of_a_server_that_knows_no_checksums(
    server, face, monkeypatch, caplog, first
):
    order = sorted(ASKS, key=lambda name: name != first)

    def results(client):
        return [each.tobytes() for name in order for each in ASKS[name](client)]

    with face(server.address, checksums=False) as plain:
        expected = results(plain)
    with face(server.address, checksums=True) as client:
        assert results(client) == expected
    with face(server.address, checksums=True) as client, caplog.at_level(logging.WARNING):
        client.wait_ready()
        monkeypatch.setattr("gradwire_server.rpc.codec.checksums.AVAILABLE", False)
        assert results(client) == results(client) == expected
    own = [each.message for each in caplog.records if each.name == "gradwire"]
    assert own == ["no checksums: a server does not know them"]


@pytest.mark.parametrize("up", [True, False], ids=["request", "result"])
@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["small", "large"])
def test_a_changed_byte_of_data_is_an_error_that_is_retried(address, plain, array, up):
    # Powers of two survive the halving: the mark is found on its way in both directions.
    marked = np.full_like(array, 2.0**-77)
    pattern = np.float32(2.0**-77 * (1 if up else 4)).tobytes() * 8
    left = []

    def change(block):
        if left and pattern in block:
            left.pop()
            at = block.index(pattern)
            return block[: at + 1] + b"\x55" + block[at + 2 :]
        return block

    with relaying(address) as relay:
        setattr(relay, "alter_up" if up else "alter", change)
        left.append(1)
        with Client(relay.address, checksums=True, retry=ONCE) as client:
            with pytest.raises(DataLossError) as caught:
                halved(client, marked)
            assert caught.value.reason == "CHECKSUM_MISMATCH"
            assert isinstance(caught.value, GradwireError)
        left += [1, 2]
        with Client(relay.address, checksums=True, retry=PROMPT) as client:
            result = halved(client, marked)
        assert not left
    assert result.tobytes() == halved(plain, marked).tobytes()
