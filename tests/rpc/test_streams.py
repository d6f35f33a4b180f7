"""The rules of streams, and EvaluateMany's answers, which are those of single calls."""

import itertools
import threading
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from gradwire import v1
from support import raw_calls
from support.raw_calls import ManyCall, chunk, float32, identity_request, named, published_request
from support.servers import gated, laborious, lasting_client, serving


@pytest.fixture(scope="module")
def server():
    with serving(max_unary_bytes=1 << 16, compute_threads=2) as server:
        yield server


client = pytest.fixture(lasting_client)
OPEN = raw_calls.opening(published_request())
HALF, REST = chunk(0, raw_calls.PUBLISHED_GRADIENT[:6]), chunk(6, raw_calls.PUBLISHED_GRADIENT[6:])
EMPTY = v1.EvaluateStreamRequest()

# The messages, the field at fault, and words of what came and what would do.
DISORDER = {
    "nothing": ([], "open", ["half-close", "starts with open"]),
    "chunk before open": ([HALF, OPEN], "open", ["chunk came first", "starts with open"]),
    "empty message first": ([EMPTY], "open", ["empty message", "starts with open"]),
    "open alone": ([OPEN], "chunk", ["0 of 12"]),
    "second open": ([OPEN, HALF, REST, OPEN], "chunk", ["open came", "only chunks"]),
    "empty message later": ([OPEN, HALF, EMPTY], "chunk", ["empty message"]),
    "missing chunk": ([OPEN, HALF], "chunk", ["6 of 12"]),
    "gap": ([OPEN, HALF, chunk(7, bytes(5))], "chunk.offset", ["7", "6"]),
    "overlap": ([OPEN, HALF, chunk(5, bytes(7))], "chunk.offset", ["5", "6"]),
    "repetition": ([OPEN, HALF, HALF], "chunk.offset", ["0", "6"]),
    "late start": ([OPEN, REST], "chunk.offset", ["6", "0"]),
    "negative offset": ([OPEN, chunk(-1, bytes(1))], "chunk.offset", ["-1", "0"]),
    "largest offset": ([OPEN, chunk(2**63 - 1, bytes(1))], "chunk.offset", [str(2**63 - 1)]),
    "empty chunk": ([OPEN, chunk(0, b"")], "chunk.data", ["0 bytes", "1"]),
    "overlong chunk": ([OPEN, chunk(0, bytes(13))], "chunk.data", ["13", "12"]),
    "chunk beyond the limit": (
        [raw_calls.opening(identity_request(1 << 20)), chunk(0, bytes((2 << 20) + 1))],
        "chunk.data",
        [str((2 << 20) + 1), str(2 << 20)],
    ),
}


@pytest.mark.parametrize(("messages", "path", "words"), DISORDER.values(), ids=list(DISORDER))
def test_disorder_is_refused_with_what_came_and_what_comes_next(client, messages, path, words):
    refusal = raw_calls.ended(client.stream(messages), "INVALID_DATA", field=path)
    assert [word for word in words if word not in refusal.message] == []


def test_opened_tells_the_result_the_limit_and_a_digest_of_the_evaluation_alone(client):
    def digest(request):
        answer = client.stream(raw_calls.as_stream(request))
        assert answer.opened is not None
        assert answer.opened.output == request.output
        assert (answer.opened.read_from_byte, answer.opened.max_chunk_bytes) == (0, 2 << 20)
        assert answer.trailers["gradwire-request-id"] == request.request_id
        assert answer.trailers["traceparent"].startswith(raw_calls.TRACEPARENT[:36])
        return answer.opened.evaluation_digest

    renamed, other, strided = (published_request() for _ in range(3))
    renamed.request_id, renamed.data = "another", bytes(12)
    other.operator.dml_resample_grad.scales[1] = 1.25
    strided.output.strides[:] = [1, 2]
    first = digest(published_request())
    assert (digest(renamed), len(first)) == (first, 64)
    assert len({first, digest(other), digest(strided)}) == 3


def test_results_flow_while_input_still_arrives(client):
    # Slabs of 2 MiB: the first results need the first few chunks of 32, and no more.
    data = np.arange(8 << 20, dtype="<f4").tobytes()
    pieces, seen = list(raw_calls.chunks(data, 1 << 20)), threading.Event()

    def messages():
        yield raw_calls.opening(identity_request(8, 1 << 20))
        yield from pieces[:16]
        assert seen.wait(raw_calls.PATIENCE_S)
        yield from pieces[16:]

    call = client.start(messages())
    came = [next(call), next(call)]
    seen.set()
    assert raw_calls.read_all(call, itertools.chain(came, call)).data == data


@pytest.mark.parametrize("wanted", [0, 4096, 4097, 10_000, 1 << 20, 2**63 - 1])
def test_result_chunks_are_contiguous_and_no_longer_than_asked_or_the_server_allows(client, wanted):
    doubled = identity_request(1, 100, 100)
    doubled.operator.interpolate.mode = v1.Interpolate.MODE_NEAREST
    doubled.operator.interpolate.sizes[:] = [200]
    doubled.operator.interpolate.data_format = v1.Interpolate.DATA_FORMAT_NXC
    doubled.ClearField("output")
    most = min(wanted or 2 << 20, 2 << 20)
    for request, sent, came in ((doubled, 10_000, 20_000), (identity_request(3 << 18), 3 << 18, 0)):
        messages = raw_calls.chunks(np.ones(sent, "<f4").tobytes(), 2 << 20)
        answer = client.stream([raw_calls.opening(request, max_chunk_bytes=wanted), *messages])
        assert answer.data == np.ones(came or sent, "<f4").tobytes()
        assert answer.output == (float32(1, 200, 100) if came else request.output)
        ends = list(itertools.accumulate(length for _, length in answer.chunks))
        assert [offset for offset, _ in answer.chunks] == [0, *ends[:-1]]
        assert all(1 <= length <= most for _, length in answer.chunks)


@pytest.mark.parametrize("at", [0, 1, 20])
def test_a_writer_in_full_flow_gets_the_right_refusal(client, at):
    """Number `at` of chunks without end is wrong, or open where it is 0."""
    request = identity_request(1 << 20, 64)
    reason, field = ("INVALID_DATA", "chunk.offset") if at else ("INVALID_FIELD", "output.sizes[0]")
    if at == 0:
        request.output.sizes[0] = 0

    def messages():
        yield raw_calls.opening(request)
        data = bytes(64 << 10)
        for number in range(1, 1000):
            yield chunk((number - 1) * len(data) + (number == at), data)

    for _ in range(10):
        error = raw_calls.told(client.stream(messages()).refusal, reason)
        assert [each.field for each in error.field_violations] == [field]


def changed(raw=b"", **fields):
    """Change fields of the published request; raw bytes come after it."""
    request = published_request()
    for name in fields:
        request.ClearField(name)
    request.MergeFrom(v1.EvaluateRequest(**fields))
    request.MergeFromString(raw)
    return request


BAD = {
    "without an operator": changed(operator=None),
    "too little data": changed(data=b"1234"),
    "no sizes": changed(input=float32()),
    "wrong sizes": changed(output=float32(2, 7, 1)),
    "a newer field": changed(b"\x30\x01"),
    "a long header": changed(input=float32(*[1] * (1 << 14))),
    "too large": identity_request(1 << 20, data=bytes(8)),
    "too large a result": changed(output=float32(1 << 10, 1 << 10)),
    "more than any limit": changed(output=float32(1 << 40, 1 << 20)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_a_request_of_many_is_refused_as_a_call_is_and_disturbs_no_other(client, bad):
    with ManyCall(client) as call:
        for number in range(3):
            call.send(named(published_request(), f"good {number}"), named(bad, f"bad {number}"))
        answers = call.answers()
    refusal = client.evaluate(bad).refusal
    assert refusal is not None
    for number in range(3):
        assert answers[f"good {number}"].result.data == raw_calls.PUBLISHED_RESULT
        error = answers[f"bad {number}"].error
        assert error.code == refusal.code.value[0]
        assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{refusal.info.reason}"
        assert error.message == refusal.message.replace("; Evaluate takes", "; EvaluateMany takes")
        assert error.metadata["request_id"] == f"bad {number}"
        assert error.metadata["traceparent"] == refusal.trailers["traceparent"]


def test_a_name_may_be_used_again_once_it_is_answered(client):
    with ManyCall(client) as call:
        for number in range(200):
            call.send(named(raw_calls.rows(1 + number % 3), "again"))
            assert call.receive().WhichOneof("outcome") == "result"
        assert call.answers() == {}
        assert call.call.code() is grpc.StatusCode.OK


NAME = "evaluation.request_id"
# An evaluation beside a field that no schema has.
NEWER = named(published_request(), "a")
NEWER.MergeFromString(b"\x10\x01")
# The messages, the field at fault, and the reason.
VIOLATIONS = [
    ([v1.EvaluateManyRequest()], "evaluation", "INVALID_DATA"),
    ([named(published_request(), "")], NAME, "INVALID_DATA"),
    ([named(published_request(), "n" * 129)], NAME, "INVALID_DATA"),
    ([named(published_request(), "n" * (15 << 20))], NAME, "INVALID_DATA"),
    # A name in use.
    (
        [named(each, "same") for each in (raw_calls.summed(1 << 18), published_request())],
        NAME,
        "INVALID_DATA",
    ),
    ([NEWER], None, "UNKNOWN_FIELD"),
]


def test_what_no_answer_could_be_matched_with_ends_the_stream(client):
    for messages, field, reason in VIOLATIONS:
        with ManyCall(client) as call:
            call.send(*messages)
            raw_calls.ended(call.refusal(), reason, field=field)


NAMES = [str(number) for number in range(100)]
ALL = [named(laborious(), name) for name in NAMES]


@contextmanager
def held(**settings):
    """Run a server of one thread that computes once the gate is open, with a stream of requests."""
    with (
        gated(**settings) as (server, gate),
        raw_calls.RawClient(server.address) as client,
        ManyCall(client) as call,
    ):
        yield gate, server.server.service.admission, client, call


@pytest.fixture(scope="module")
def each():
    """Return the memory that one of the requests takes of a server's budget."""
    with held() as (_, admission, _, call):
        call.send(ALL[0])
        raw_calls.wait_until(lambda: admission.memory_bytes)
        return int(admission.memory_bytes)


def check_results(answers):
    assert sorted(answers) == sorted(NAMES)
    assert {each.WhichOneof("outcome") for each in answers.values()} == {"result"}


def test_no_more_requests_are_read_than_may_be_in_flight(each):
    most, answers = 0, {}
    with held(max_in_flight=3) as (gate, admission, _, call):
        call.send(*ALL)
        raw_calls.wait_until(lambda: admission.memory_bytes == 3 * each)
        gate.set()
        call.half_close()
        for answer in call:
            most = max(most, admission.memory_bytes)
            answers[answer.request_id] = answer
    assert most <= 3 * each
    check_results(answers)


def test_requests_of_one_stream_wait_for_the_memory_of_one_another(each):
    with held(max_memory_bytes=each) as (gate, admission, client, call):
        call.send(*ALL)
        raw_calls.wait_until(lambda: admission.memory_bytes == each)
        with ManyCall(client) as other:
            other.send(named(laborious(), "one too many"))
            error = other.receive().error
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert error.reason == v1.ErrorReason.ERROR_REASON_OVERLOADED
        assert error.HasField("retry_after")
        # Of the other stream: who waits was not refused.
        assert admission.refusals == {"max_memory_bytes": 1}
        gate.set()
        check_results(call.answers())


def test_a_stream_leaves_memory_to_others(each):
    with (
        held(max_memory_bytes=32 * each) as (gate, admission, client, call),
        ManyCall(client) as other,
    ):
        call.send(*ALL)
        raw_calls.wait_until(lambda: admission.memory_bytes == 4 * each)
        other.send(named(laborious(), "other"))
        raw_calls.wait_until(lambda: admission.memory_bytes == 5 * each)
        gate.set()
        assert other.receive().WhichOneof("outcome") == "result"
        check_results(call.answers())
        assert not admission.refusals
