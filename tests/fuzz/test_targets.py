"""Bytes and messages, kept, drawn and made of those, break no law at either end of a call.

Targets read them by themselves. Servers end each stream as the order of its messages says. Whatever
a server answers, the SDK has a result or an error of its own, and its threads end.
"""

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from fuzz.run import NAMES, read
from fuzz.targets import HALVE, SMALL, TARGETS, pieces
from gradwire import Client, GradwireError, Item, RetryPolicy, errors, v1
from gradwire._wire.framing import chunk_frame
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support import raw_calls
from support.clients import ONCE
from support.examples import examples
from support.raw_calls import PUBLISHED_GRADIENT, PUBLISHED_RESULT, ManyCall, RawClient, wait_until
from support.servers import serving

KEPT = {name: read(name) for name in NAMES}


def test_every_target_has_a_corpus():
    assert KEPT.keys() == TARGETS.keys()
    assert all(KEPT.values())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_breaks_no_law(name):
    for data in KEPT[name]:
        TARGETS[name](data)


@st.composite
def crossed(draw, name):
    """Join parts of what is kept of a target, with other bytes between."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kept = draw(st.sampled_from(KEPT[name]))
        ends = sorted((draw(st.integers(0, len(kept))), draw(st.integers(0, len(kept)))))
        parts += [kept[slice(*ends)], draw(BETWEEN)]
    return b"".join(parts)


BETWEEN = st.just(b"") | st.binary(max_size=3)


@pytest.mark.parametrize("name", NAMES)
@examples(150)
@given(data=st.data())
def test_what_is_made_of_it_breaks_no_law(name, data):
    TARGETS[name](data.draw(crossed(name)))


TOTAL = len(PUBLISHED_GRADIENT)
GARBAGE = b"\x0a\xff\xff"
# Of a stream; what is drawn more often is there more often.
MOVES = ["open"] * 3 + ["next"] * 9 + ["rest"] * 6 + ["far", "empty", "long", "nothing", "garbage"]
# Of EvaluateMany, where what is given three times is refused alone and the last ones end it all.
ITEMS = ["good"] * 9 + ["short", "unset", "negative"] * 3 + ["nameless", "nothing", "garbage"]
ITEM_REASONS = {"short": "INVALID_DATA", "unset": "INVALID_FIELD", "negative": "INVALID_FIELD"}


@pytest.fixture(scope="module")
def client():
    with serving(backend=NumpyCpu()) as server, RawClient(server.address) as client:
        client.check_alive()
        yield client
        client.check_alive()


def stream_of(moves):
    """Return the messages of one EvaluateStream, and whether half-close makes it a success."""
    messages = []
    sound, opened, at = True, False, 0
    for move in moves:
        left = TOTAL - at
        if move == "open":
            messages.append(raw_calls.opening(raw_calls.published_request()))
            sound, opened = sound and not opened, True
        elif move in {"next", "rest"}:
            size = min(4, left) if move == "next" else left
            messages.append(raw_calls.chunk(at, PUBLISHED_GRADIENT[at : at + size]))
            sound, at = sound and opened and size > 0, at + size
        else:
            wrong = {
                "far": raw_calls.chunk(at + 1, PUBLISHED_GRADIENT[at + 1 :] or b"1"),
                "empty": raw_calls.chunk(at, b""),
                "long": raw_calls.chunk(at, bytes(left + 1)),
                "nothing": v1.EvaluateStreamRequest(),
            }
            messages.append(wrong.get(move))
            sound = False
    written = [GARBAGE if each is None else each.SerializeToString() for each in messages]
    return written, sound and opened and at == TOTAL


@examples(12)
@given(st.lists(st.lists(st.sampled_from(MOVES), max_size=6), min_size=8, max_size=24))
def test_a_stream_ends_as_the_order_of_its_messages_says(client, moves):
    messages, succeed = zip(*map(stream_of, moves), strict=True)
    with ThreadPoolExecutor(len(moves)) as pool:
        answers = list(pool.map(partial(raw_calls.stream_bytes, client), messages))
    for each, succeeds, answer in zip(moves, succeed, answers, strict=True):
        if succeeds:
            assert (answer.refusal, answer.data) == (None, PUBLISHED_RESULT), each
        else:
            field = answer.refusal.info.metadata["field"] if answer.refusal else None
            raw_calls.ended(answer, "INVALID_DATA", field=field)


def item(kind, name):
    request = raw_calls.published_request()
    if kind == "short":
        request.data = request.data[1:]
    elif kind == "unset":
        request.ClearField("operator")
    elif kind == "negative":
        request.input.sizes[0] = -1
    elif kind == "nothing":
        return b""
    elif kind == "garbage":
        return GARBAGE
    return raw_calls.named(request, "" if kind == "nameless" else name).SerializeToString()


@examples(25)
@given(st.lists(st.sampled_from(ITEMS), max_size=40))
def test_each_of_many_has_its_own_answer_until_one_ends_them_all(client, kinds):
    last = next((at for at, kind in enumerate(kinds) if kind in ITEMS[-3:]), None)
    with ManyCall.of_bytes(client, *map(item, kinds, map(str, itertools.count()))) as call:
        if last is not None:
            refused = call.refusal()
            assert refused.code == raw_calls.CODES["INVALID_DATA"]
            assert refused.info.reason == "INVALID_DATA"
            return
        answers = call.answers()
    assert answers.keys() == set(map(str, range(len(kinds))))
    for name, answer in answers.items():
        kind = kinds[int(name)]
        if kind == "good":
            assert answer.result.data == PUBLISHED_RESULT
        else:
            reason = v1.ErrorReason.Name(answer.error.reason)
            assert reason == f"ERROR_REASON_{ITEM_REASONS[kind]}"


class Strange(grpc.GenericRpcHandler):
    """Answers every call with the messages and the status it was told, None for OK.

    It has two ports, so that calls can be split between them.
    """

    def __init__(self):
        self.messages = []
        self.code = None
        self.details = b""
        self.calls = 0
        self.addresses = []

    def service(self, handler_call_details):
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, _requests, context):
        self.calls += 1
        yield from self.messages
        if self.code is not None:
            trailers = (("grpc-status-details-bin", self.details), ("gradwire-timing", "?;dur=x"))
            context.set_trailing_metadata(trailers)
            context.abort(self.code, "a strange server")


@pytest.fixture(scope="module")
def strange():
    handler = Strange()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(2)]
    handler.addresses = [f"127.0.0.1:{port}" for port in ports]
    server.start()
    yield handler
    server.stop(None).wait()


ANSWERS = st.sampled_from(KEPT["answer"] + KEPT["answers"]) | st.binary(max_size=40)
STREAMED = st.sampled_from(KEPT["streamed"]).map(lambda data: list(pieces(data)))


@pytest.mark.parametrize("way", ["unary", "stream", "split", "many"])
@examples(30)
@given(
    messages=st.lists(ANSWERS, max_size=3) | STREAMED,
    code=st.none() | st.sampled_from([each for each in grpc.StatusCode if each.value[0]]),
    details=st.sampled_from(KEPT["statuses"]) | st.binary(max_size=40),
)
def test_an_answer_is_a_result_or_an_error_of_the_sdk(strange, way, messages, code, details):
    # Of a second message to a unary call grpc itself takes no note, until the deadline.
    strange.messages = messages[:1] if way == "unary" else messages
    strange.code, strange.details = code, details
    client = Client(
        strange.addresses,
        retry=ONCE,
        timeout_s=2.0,
        stream_threshold_bytes=0 if way in {"stream", "split"} else 1 << 20,
        split=way == "split",
        split_threshold_bytes=0,
    )
    with contextlib.suppress(GradwireError), client:
        if way == "many":
            result = next(client.evaluate_many([Item(HALVE, SMALL, (1, 1, 3))]))
        else:
            result = client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
        assert result.shape == (1, 1, 3)
        assert result.dtype == np.float32
    ours = {"gradwire-receiver", "gradwire-watch", "gradwire-split", "gradwire-share"}
    wait_until(lambda: not ours & {each.name for each in threading.enumerate()})


@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["stream", "unary"])
def test_an_error_that_no_retry_mends_is_not_retried(strange, threshold):
    strange.messages, strange.details, strange.calls = [], b"", 0
    strange.code = grpc.StatusCode.INVALID_ARGUMENT
    retry = RetryPolicy(initial_backoff_s=0.01)
    client = Client(strange.addresses[0], retry=retry, stream_threshold_bytes=threshold)
    with client, pytest.raises(errors.InvalidRequestError):
        client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
    assert strange.calls == 1


def test_a_chunk_before_opened_and_a_layout_refused_in_every_order_are_errors(strange):
    options = {"retry": ONCE, "stream_threshold_bytes": 0}
    strange.code = None
    with Client(strange.addresses[0], checksums=True, **options) as client:
        for after in (None, 0):
            strange.messages = [chunk_frame(0, bytes(12), after)]
            with pytest.raises(errors.DataLossError, match="a chunk came before opened"):
                client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
    status = status_pb2.Status()
    info = error_details_pb2.ErrorInfo(reason="LAYOUT_NOT_STREAMABLE", domain="gradwire.v1")
    status.details.add().Pack(info)
    strange.messages, strange.code = [], grpc.StatusCode.FAILED_PRECONDITION
    strange.details = status.SerializeToString()
    out = np.empty((1, 6, 1), np.float32).transpose(0, 2, 1)
    with (
        Client(strange.addresses[0], **options) as client,
        pytest.raises(errors.LimitExceededError),
    ):
        client.evaluate(HALVE, SMALL, out=out, timeout_s=5.0)
