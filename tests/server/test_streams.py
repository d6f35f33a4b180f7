"""The rules of a stream: its order, its bytes, and the right error even for a busy writer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from gradwire import v1
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    PUBLISHED_GRADIENT,
    PUBLISHED_RESULT,
    TRACEPARENT,
    RawClient,
    as_stream,
    chunk,
    chunks,
    ended,
    float32,
    identity_request,
    opening,
    published_request,
    read_all,
    refused,
    silence,
)
from support.servers import served, wait_idle

Messages = list[v1.EvaluateStreamRequest]


pytestmark = pytest.mark.usefixtures("still_alive")


OPEN = opening(published_request())
HALF, REST = chunk(0, PUBLISHED_GRADIENT[:6]), chunk(6, PUBLISHED_GRADIENT[6:])
EMPTY = v1.EvaluateStreamRequest()

# The messages, the field at fault, and words of what came and what would do.
DISORDER: dict[str, tuple[Messages, str, list[str]]] = {
    "nothing": ([], "open", ["half-close", "starts with open"]),
    "chunk before open": ([HALF, OPEN], "open", ["chunk came first", "starts with open"]),
    "empty message first": ([EMPTY], "open", ["empty message", "starts with open"]),
    "open alone": ([OPEN], "chunk", ["0 of 12"]),
    "second open": ([OPEN, OPEN], "chunk", ["open came", "only chunks"]),
    "second open between chunks": ([OPEN, HALF, OPEN, REST], "chunk", ["open came"]),
    "second open at the end": ([OPEN, HALF, REST, OPEN], "chunk", ["open came"]),
    "empty message later": ([OPEN, HALF, EMPTY], "chunk", ["empty message"]),
    "missing chunk": ([OPEN, HALF], "chunk", ["6 of 12"]),
    "missing byte": ([OPEN, chunk(0, bytes(11))], "chunk", ["11 of 12"]),
    "gap": ([OPEN, HALF, chunk(7, bytes(5))], "chunk.offset", ["7", "6"]),
    "overlap": ([OPEN, HALF, chunk(5, bytes(7))], "chunk.offset", ["5", "6"]),
    "repetition": ([OPEN, HALF, HALF], "chunk.offset", ["0", "6"]),
    "late start": ([OPEN, REST], "chunk.offset", ["6", "0"]),
    "negative offset": ([OPEN, chunk(-1, bytes(1))], "chunk.offset", ["-1", "0"]),
    "largest offset": ([OPEN, chunk(2**63 - 1, bytes(1))], "chunk.offset", [str(2**63 - 1)]),
    "empty chunk": ([OPEN, chunk(0, b"")], "chunk.data", ["0 bytes", "1"]),
    "overlong chunk": ([OPEN, chunk(0, bytes(13))], "chunk.data", ["13", "12"]),
    "overlong last chunk": ([OPEN, HALF, chunk(6, bytes(7))], "chunk.data", ["13", "12"]),
    "one chunk more": ([OPEN, HALF, REST, chunk(12, b"\0")], "chunk.data", ["13", "12"]),
    "chunk beyond the limit": (
        [opening(identity_request(1 << 20)), chunk(0, bytes((2 << 20) + 1))],
        "chunk.data",
        [str((2 << 20) + 1), str(2 << 20)],
    ),
}


@pytest.mark.parametrize(("messages", "path", "words"), DISORDER.values(), ids=list(DISORDER))
def test_disorder_is_refused_with_what_came_and_what_comes_next(
    client: RawClient, messages: Messages, path: str, words: list[str]
) -> None:
    refusal = ended(client.stream(messages), "INVALID_DATA", field=path)
    for word in words:
        assert word in refusal.message


def test_opened_tells_the_result_the_limit_and_a_digest_of_the_evaluation_alone(
    client: RawClient,
) -> None:
    def digest(request: v1.EvaluateRequest) -> str:
        answer = client.stream(as_stream(request))
        assert answer.opened is not None
        assert answer.opened.output == request.output
        assert (answer.opened.read_from_byte, answer.opened.max_chunk_bytes) == (0, 2 << 20)
        assert answer.trailers["gradwire-request-id"] == request.request_id
        assert answer.trailers["traceparent"].startswith(TRACEPARENT[:36])
        return answer.opened.evaluation_digest

    renamed, other, strided = (published_request() for _ in range(3))
    renamed.request_id, renamed.data = "another", bytes(12)
    other.operator.dml_resample_grad.scales[1] = 1.25
    strided.output.strides[:] = [1, 2]
    first = digest(published_request())
    assert (digest(renamed), len(first)) == (first, 64)
    assert len({first, digest(other), digest(strided)}) == 3


def test_half_close_is_waited_for(client: RawClient) -> None:
    go = threading.Event()

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield from as_stream(published_request())
        go.wait(PATIENCE_S)
        yield chunk(12, b"\0")

    def heard() -> Iterator[v1.EvaluateStreamResponse]:
        length = 0
        for message in call:
            length += len(message.chunk.data)
            if length == len(PUBLISHED_RESULT):
                go.set()
            yield message

    call = client.start(messages())
    answer = read_all(call, heard())
    # Every result byte came, and still the stream was open for one input byte too many.
    assert answer.data == PUBLISHED_RESULT
    refused(answer, "INVALID_DATA", field="chunk.data")


def test_results_flow_while_input_still_arrives(client: RawClient) -> None:
    # Slabs of 2 MiB: the first results need the first few chunks of 32, and no more.
    data = np.arange(8 << 20, dtype="<f4").tobytes()
    seen = threading.Semaphore(0)

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(identity_request(8, 1 << 20))
        for number, message in enumerate(chunks(data, 1 << 20)):
            if number == 16:
                assert seen.acquire(timeout=PATIENCE_S)
            yield message

    def watched() -> Iterator[v1.EvaluateStreamResponse]:
        for message in call:
            if message.WhichOneof("message") == "chunk":
                seen.release()
            yield message

    call = client.start(messages())
    assert read_all(call, watched()).data == data


@pytest.mark.parametrize("wanted", [0, 4096, 4097, 10_000, 1 << 20, 2**63 - 1])
def test_result_chunks_are_contiguous_and_no_longer_than_asked_or_the_server_allows(
    client: RawClient, wanted: int
) -> None:
    doubled = identity_request(1, 100, 100)
    doubled.operator.interpolate.mode = v1.Interpolate.MODE_NEAREST
    doubled.operator.interpolate.sizes[:] = [200]
    doubled.operator.interpolate.data_format = v1.Interpolate.DATA_FORMAT_NXC
    doubled.ClearField("output")
    most = min(wanted or 2 << 20, 2 << 20)
    for request, sent, came in ((doubled, 10_000, 20_000), (identity_request(3 << 18), 3 << 18, 0)):
        messages = chunks(np.ones(sent, "<f4").tobytes(), 2 << 20)
        answer = client.stream([opening(request, max_chunk_bytes=wanted), *messages])
        assert answer.data == np.ones(came or sent, "<f4").tobytes()
        ends = list(itertools.accumulate(length for _, length in answer.chunks))
        assert [offset for offset, _ in answer.chunks] == [0, *ends[:-1]]
        assert all(1 <= length <= most for _, length in answer.chunks)


@pytest.mark.parametrize("how", BOTH_WAYS)
def test_an_inferred_result_is_announced(client: RawClient, how: str) -> None:
    request = identity_request(1, 2, 2)
    request.operator.interpolate.mode = v1.Interpolate.MODE_NEAREST
    request.operator.interpolate.sizes[:] = [4]
    request.ClearField("output")
    request.data = np.array([[[1, 2], [3, 4]]], "<f4").tobytes()
    answer = client.ask(request, how)
    assert answer.output == float32(1, 4, 2)
    assert answer.data == np.array([1, 2, 1, 2, 3, 4, 3, 4], "<f4").tobytes()


@pytest.mark.parametrize("at", [0, 1, 2, 5, 20, 100])
def test_a_writer_in_full_flow_gets_the_right_refusal(client: RawClient, at: int) -> None:
    """Number `at` of chunks without end is wrong, or open where it is 0."""
    request = identity_request(1 << 20, 64)
    reason, field = ("INVALID_DATA", "chunk.offset") if at else ("INVALID_FIELD", "output.sizes[0]")
    if at == 0:
        request.output.sizes[0] = 0

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(request)
        data = bytes(64 << 10)
        for number in range(1, 1000):
            yield chunk((number - 1) * len(data) + (number == at), data)

    for _ in range(10):
        refusal = client.stream(messages()).refusal
        assert refusal is not None
        error = refusal.in_band
        assert error is not None
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{reason}"
        assert [each.field for each in error.field_violations] == [field]


def test_a_cancelled_stream_ends_and_gives_all_back() -> None:
    messages = [opening(identity_request(1 << 20)), *chunks(bytes(3 << 20), 64 << 10)]
    with served() as (server, client):
        for number in range(20):
            with silence(messages) as silent:
                call = client.start(silent())
                for _ in range(number % 4):
                    next(call)
                call.cancel()
            assert call.code() is grpc.StatusCode.CANCELLED
        wait_idle(server)
        client.check_alive()


def test_where_nothing_is_computed_chunks_are_no_longer_than_asked_for(client: RawClient) -> None:
    data = bytes(range(256)) * 64
    opened = opening(identity_request(64, 64), max_chunk_bytes=5000)
    answer = client.stream([opened, *chunks(data, 16_000)])
    assert answer.data == data
    assert max(length for _, length in answer.chunks) == 5000
