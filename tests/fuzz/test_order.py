"""Messages in any order: each stream ends as the rules of its RPC say, whatever others do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import v1
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.raw_calls import (
    CODES,
    PATIENCE_S,
    PUBLISHED_GRADIENT,
    PUBLISHED_RESULT,
    Answer,
    ManyCall,
    RawClient,
    chunk,
    ended,
    named,
    opening,
    published_request,
    read_all,
)
from support.servers import serving

TOTAL = len(PUBLISHED_GRADIENT)
GARBAGE = b"\x0a\xff\xff"
# Of a stream; what is drawn more often is there more often.
MOVES = ["open"] * 3 + ["next"] * 9 + ["rest"] * 6 + ["far", "empty", "long", "nothing", "garbage"]
# Of EvaluateMany, where what is given three times is refused alone and the last ones end it all.
ITEMS = ["good"] * 9 + ["short", "unset", "negative"] * 3 + ["nameless", "nothing", "garbage"]
ITEM_REASONS = {"short": "INVALID_DATA", "unset": "INVALID_FIELD", "negative": "INVALID_FIELD"}


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with serving(backend=NumpyCpu()) as server, RawClient(server.address) as client:
        client.check_alive()
        yield client
        client.check_alive()


@dataclass
class Stream:
    """The messages of one EvaluateStream, and what they must come to.

    sound  whether all were in order so far
    """

    messages: list[bytes]
    sound: bool = True
    opened: bool = False
    position: int = 0

    def add(self, move: str) -> None:
        """Add a message."""
        made, right = self._make(move)
        self.messages.append(made)
        self.sound = self.sound and right

    def _make(self, move: str) -> tuple[bytes, bool]:
        at, left = self.position, TOTAL - self.position
        if move == "open":
            right, self.opened = not self.opened, True
            return opening(published_request()).SerializeToString(), right
        if move in {"next", "rest"}:
            size = min(4, left) if move == "next" else left
            data = PUBLISHED_GRADIENT[at : at + size]
            self.position += size
            return chunk(at, data).SerializeToString(), self.opened and size > 0
        wrong = {
            "far": chunk(at + 1, PUBLISHED_GRADIENT[at + 1 :] or b"1").SerializeToString(),
            "empty": chunk(at, b"").SerializeToString(),
            "long": chunk(at, bytes(left + 1)).SerializeToString(),
            "nothing": b"",
            "garbage": GARBAGE,
        }
        return wrong[move], False

    @property
    def succeeds(self) -> bool:
        """Whether half-close now makes it a success."""
        return self.sound and self.opened and self.position == TOTAL


def run_stream(client: RawClient, messages: Sequence[bytes]) -> Answer:
    method: grpc.StreamStreamMultiCallable[bytes, v1.EvaluateStreamResponse]
    method = client.channel.stream_stream(
        "/gradwire.v1.GradientService/EvaluateStream",
        response_deserializer=v1.EvaluateStreamResponse.FromString,
    )
    return read_all(method(iter(messages), timeout=PATIENCE_S))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.sampled_from(MOVES), max_size=6), min_size=8, max_size=24))
def test_a_stream_ends_as_the_order_of_its_messages_says(
    client: RawClient, moves: list[list[str]]
) -> None:
    streams = [Stream([]) for _ in moves]
    for stream, each in zip(streams, moves, strict=True):
        for move in each:
            stream.add(move)
    with ThreadPoolExecutor(len(streams)) as pool:
        running = [pool.submit(run_stream, client, each.messages) for each in streams]
    answers = [each.result() for each in running]
    for stream, answer in zip(streams, answers, strict=True):
        if stream.succeeds:
            assert answer.refusal is None, stream
            assert answer.data == PUBLISHED_RESULT
        else:
            field = answer.refusal.info.metadata["field"] if answer.refusal else None
            ended(answer, "INVALID_DATA", field=field)


def item(kind: str, name: str) -> bytes:
    """Make a message of EvaluateMany."""
    request = published_request()
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
    return named(request, "" if kind == "nameless" else name).SerializeToString()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ITEMS), max_size=40))
def test_each_of_many_has_its_own_answer_until_one_ends_them_all(
    client: RawClient, kinds: list[str]
) -> None:
    last = next((at for at, kind in enumerate(kinds) if kind in ITEMS[-3:]), None)
    with ManyCall.of_bytes(client, *map(item, kinds, map(str, itertools.count()))) as call:
        answers: dict[str, v1.EvaluateManyResponse] = {}
        refused = None
        if last is None:
            answers = call.answers()
            assert answers.keys() == set(map(str, range(len(kinds))))
        else:
            refused = call.refusal()
    for name, answer in answers.items():
        kind = kinds[int(name)]
        if kind == "good":
            assert answer.result.data == PUBLISHED_RESULT
        else:
            reason = v1.ErrorReason.Name(answer.error.reason)
            assert reason == f"ERROR_REASON_{ITEM_REASONS[kind]}"
    if last is not None:
        assert refused is not None
        assert refused.code is CODES["INVALID_DATA"]
        assert refused.info.reason == "INVALID_DATA"
