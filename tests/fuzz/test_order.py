"""Messages in any order: each stream ends as the rules of its RPC say, whatever others do."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import v1
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support import raw_calls
from support.examples import examples
from support.raw_calls import PUBLISHED_GRADIENT, PUBLISHED_RESULT, ManyCall, RawClient
from support.servers import serving

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
