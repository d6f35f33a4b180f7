"""Messages with checksums have the bytes of the schema's law, and are taken only as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from google_crc32c import python as specified

from gradwire import Client, DataLossError, v1
from gradwire._wire import checksums
from support.oracles.golden_bytes import of_hex
from support.servers import serving

DATA = b"\x01\x02\x03"
HEADER = b"\x12\x00"
# CRC32C of the 9 digits, from RFC 3720's polynomial: the value that every catalogue gives.
CHECK = 0xE3069283


def crc32c(data: bytes) -> int:
    """Compute it in Python."""
    specification: Any = specified
    return int(specification.value(data))


def test_the_function_is_crc32c() -> None:
    assert checksums.crc32c(b"123456789") == CHECK == crc32c(b"123456789")
    assert checksums.crc32c(memoryview(b"56789"), checksums.crc32c(b"1234")) == CHECK
    assert checksums.crc32c(b"") == checksums.crc32c(memoryview(b"")) == 0


def bare(message: Any) -> bytes:
    """Write a message without its checksum."""
    unsealed = deepcopy(message)
    unsealed.ClearField("checksum")
    written: bytes = unsealed.SerializeToString()
    return written


def test_an_evaluation_is_the_message_of_the_schema_and_its_response_continues_it() -> None:
    frame, checksum = checksums.evaluation_frame(b"a", HEADER, DATA)
    message = v1.EvaluateRequest.FromString(frame)
    assert message.checksum == checksum == crc32c(bare(message))
    written = checksum.to_bytes(4, "little").hex()
    expected = of_hex(f"0a 01 61 | 12 00 | 75 {written} | 7a 03 01 02 03")
    assert frame == message.SerializeToString() == expected
    assert checksums.read_evaluation(frame) == ((b"a", HEADER, memoryview(DATA)), checksum)
    answer, _ = checksums.evaluation_frame(b"a", HEADER, DATA, after=checksum)
    response = v1.EvaluateResponse.FromString(answer)
    assert response.checksum == crc32c(bare(message) + bare(response))
    with pytest.raises(DataLossError):
        checksums.read_evaluation(answer)
    # Without data it may end with its checksum.
    empty = v1.EvaluateRequest(request_id="a")
    empty.checksum = crc32c(bare(empty))
    found = checksums.read_evaluation(empty.SerializeToString())
    assert found == ((b"a", b"", memoryview(b"")), empty.checksum)


def test_open_and_chunks_are_messages_of_the_schema() -> None:
    request = v1.EvaluateStreamRequest(open=v1.Open(request_id="a", resume_from=5))
    checksum = checksums.seal(request.open)
    assert checksum == crc32c(bare(request.open))
    checksums.verify_sealed(request.SerializeToString(), checksum)
    frame = checksums.chunk_frame(300, DATA, after=checksum)
    message = v1.EvaluateStreamRequest.FromString(frame)
    assert message.SerializeToString() == frame
    assert message.chunk.checksum == crc32c(bare(request.open) + bare(message.chunk))
    assert checksums.read_chunk(frame, after=checksum) == (300, memoryview(DATA))
    with pytest.raises(DataLossError):
        checksums.read_chunk(frame, after=checksum + 1)


def test_requests_and_results_among_many_are_messages_of_the_schema() -> None:
    frame, checksum = checksums.many_request_frame(b"a", HEADER, DATA)
    request = v1.EvaluateManyRequest.FromString(frame)
    answer = checksums.many_result_frame(b"a", HEADER, DATA, after=checksum)
    result = v1.EvaluateManyResponse.FromString(answer)
    assert (request.SerializeToString(), result.SerializeToString()) == (frame, answer)
    assert checksum == crc32c(bare(request.evaluation))
    parts = checksums.read_many_result(answer, {b"a": checksum}.get)
    assert parts == (b"a", HEADER, memoryview(DATA))


FRAMES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "evaluation": (
        checksums.evaluation_frame(b"a", HEADER, DATA, after=7)[0],
        lambda frame: checksums.read_evaluation(frame, after=7),
    ),
    "result among many": (
        checksums.many_result_frame(b"a", HEADER, DATA, after=7),
        lambda frame: checksums.read_many_result(frame, {b"a": 7}.get),
    ),
    "chunk": (
        checksums.chunk_frame(300, DATA, after=7),
        lambda frame: checksums.read_chunk(frame, after=7),
    ),
}


@pytest.mark.parametrize(("frame", "read"), FRAMES.values(), ids=list(FRAMES))
def test_no_message_is_taken_with_a_changed_byte(frame: bytes, read: Any) -> None:
    assert read(frame) is not None
    for at in range(len(frame)):
        for value in range(256):
            if value != frame[at]:
                changed = frame[:at] + bytes((value,)) + frame[at + 1 :]
                with contextlib.suppress(DataLossError):
                    assert read(changed) is None


@pytest.mark.parametrize("available", [True, False])
def test_a_server_tells_whether_it_computes_checksums(
    monkeypatch: pytest.MonkeyPatch, *, available: bool
) -> None:
    monkeypatch.setattr(checksums, "AVAILABLE", available)
    with serving() as server, Client(server.address) as client:
        assert client.server_info().checksums is available
