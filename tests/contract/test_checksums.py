"""Messages with checksums have the bytes of the schema's law, and are taken only as they are."""

import contextlib
from copy import deepcopy

import pytest
from google_crc32c import python as specified

from gradwire import Client, DataLossError, v1
from gradwire._wire import checksums, framing
from support.oracles.golden_bytes import of_hex
from support.servers import serving

DATA = b"\x01\x02\x03"
HEADER = b"\x12\x00"
# CRC32C of the 9 digits, from RFC 3720's polynomial: the value that every catalogue gives.
CHECK = 0xE3069283


def crc32c(data):
    """Compute it in Python."""
    specification = specified
    return int(specification.value(data))


def test_the_function_is_crc32c():
    assert checksums.crc32c(b"123456789") == CHECK == crc32c(b"123456789")
    assert checksums.crc32c(memoryview(b"56789"), checksums.crc32c(b"1234")) == CHECK
    assert checksums.crc32c(b"") == checksums.crc32c(memoryview(b"")) == 0


def bare(message):
    """Write a message without its checksum."""
    unsealed = deepcopy(message)
    unsealed.ClearField("checksum")
    return unsealed.SerializeToString()


def test_an_evaluation_is_the_message_of_the_schema_and_its_response_continues_it():
    frame, checksum = framing.evaluation_frame(b"a", HEADER, DATA, 0)
    assert checksum is not None
    message = v1.EvaluateRequest.FromString(frame)
    assert message.checksum == checksum == crc32c(bare(message))
    written = checksum.to_bytes(4, "little").hex()
    expected = of_hex(f"0a 01 61 | 12 00 | 75 {written} | 7a 03 01 02 03")
    assert frame == message.SerializeToString() == expected
    assert framing.read_evaluation(frame, 0) == ((b"a", HEADER, memoryview(DATA)), checksum)
    answer, _ = framing.evaluation_frame(b"a", HEADER, DATA, checksum)
    response = v1.EvaluateResponse.FromString(answer)
    assert response.checksum == crc32c(bare(message) + bare(response))
    with pytest.raises(DataLossError):
        framing.read_evaluation(answer, 0)
    # Without data it may end with its checksum.
    empty = v1.EvaluateRequest(request_id="a")
    empty.checksum = crc32c(bare(empty))
    found = framing.read_evaluation(empty.SerializeToString(), 0)
    assert found == ((b"a", b"", memoryview(b"")), empty.checksum)


def test_open_and_chunks_are_messages_of_the_schema():
    request = v1.EvaluateStreamRequest(open=v1.Open(request_id="a", resume_from=5))
    checksum = checksums.seal(request.open)
    assert checksum == crc32c(bare(request.open))
    framing.verify_sealed(request.SerializeToString(), checksum)
    frame = framing.chunk_frame(300, DATA, checksum)
    message = v1.EvaluateStreamRequest.FromString(frame)
    assert message.SerializeToString() == frame
    assert message.chunk.checksum == crc32c(bare(request.open) + bare(message.chunk))
    assert framing.read_chunk(frame, checksum) == (300, memoryview(DATA))
    with pytest.raises(DataLossError):
        framing.read_chunk(frame, checksum + 1)
    with pytest.raises(DataLossError):
        framing.read_chunk(framing.chunk_frame(300, DATA), checksum)


def test_requests_and_results_among_many_are_messages_of_the_schema():
    frame, checksum = framing.many_request_frame(b"a", HEADER, DATA, 0)
    request = v1.EvaluateManyRequest.FromString(frame)
    answer = framing.many_result_frame(b"a", HEADER, DATA, checksum)
    result = v1.EvaluateManyResponse.FromString(answer)
    assert (request.SerializeToString(), result.SerializeToString()) == (frame, answer)
    assert checksum == crc32c(bare(request.evaluation))
    parts = b"a", HEADER, memoryview(DATA)
    assert framing.read_many_request(frame, 0) == (parts, checksum)
    found = framing.read_many_result(answer, {b"a": checksum}.get)
    assert found is not None
    assert found[0] == parts


@pytest.mark.parametrize("kind", ["evaluation", "result among many", "chunk"])
def test_no_message_is_taken_with_a_changed_byte(kind):
    frames = {
        "evaluation": framing.evaluation_frame(b"a", HEADER, DATA, 7)[0],
        "result among many": framing.many_result_frame(b"a", HEADER, DATA, 7),
        "chunk": framing.chunk_frame(300, DATA, 7),
    }

    def read(message):
        """Return what was read with a checksum; what came without one is refused."""
        if kind == "chunk":
            return framing.read_chunk(message, 7)
        if kind == "evaluation":
            found = framing.read_evaluation(message, 7)
        else:
            found = framing.read_many_result(message, {b"a": 7}.get)
        return None if found is None or found[1] is None else found

    frame = frames[kind]
    assert read(frame) is not None
    for at in range(len(frame)):
        for value in {*range(256)} - {frame[at]}:
            with contextlib.suppress(DataLossError):
                assert read(frame[:at] + bytes((value,)) + frame[at + 1 :]) is None


@pytest.mark.parametrize("available", [True, False])
def test_a_server_tells_whether_it_computes_checksums(monkeypatch, available):
    monkeypatch.setattr(checksums, "AVAILABLE", available)
    with serving() as server, Client(server.address) as client:
        assert client.server_info().checksums is available
