"""What a corpus starts with: a sound input of each kind.

PYTHONPATH=tests python -m fuzz.seeds    adds them to tests/fuzz/corpus
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import Message

from fuzz import corpus
from golden_bytes import GOLDEN
from gradwire import v1
from raw_calls import TRACEPARENT, as_stream, float32, published_request
from wire_exchange import requests


def seeds() -> dict[str, list[bytes]]:
    """Return them by the names of their targets."""
    sound = [published_request(), *requests().values()]
    answers = [each for each, _ in GOLDEN.values()]
    return {
        "evaluate": [each.SerializeToString() for each in sound],
        "evaluate_many": [
            v1.EvaluateManyRequest(evaluation=each).SerializeToString() for each in sound
        ],
        "evaluate_stream": [_joined(as_stream(each)) for each in sound],
        "names": [b"", b"a request", b"\xc3\xa4", TRACEPARENT.encode()],
        "answer": [_halved().SerializeToString(), *_of(answers, v1.EvaluateResponse)],
        "answers": [
            v1.EvaluateManyResponse(request_id="a", result=_halved()).SerializeToString(),
            *_of(answers, v1.EvaluateManyResponse),
        ],
        "streamed": [
            _joined(
                [
                    v1.EvaluateStreamResponse(
                        opened=v1.Opened(output=float32(1, 1, 3), max_chunk_bytes=8)
                    ),
                    v1.EvaluateStreamResponse(chunk=v1.Chunk(data=bytes(8))),
                    v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=8, data=bytes(4))),
                ]
            ),
            *(_joined([each]) for each in answers if isinstance(each, v1.EvaluateStreamResponse)),
        ],
        "statuses": [
            b"receive;dur=0.1, queue;dur=0.2",
            b"RESOURCE_EXHAUSTED",
            *_of(answers, v1.Error),
        ],
    }


def _halved() -> v1.EvaluateResponse:
    return v1.EvaluateResponse(request_id="a", output=float32(1, 1, 3), data=bytes(12))


def _of(messages: Iterable[Message], kind: type[Message]) -> Iterator[bytes]:
    return (each.SerializeToString() for each in messages if isinstance(each, kind))


def _joined(messages: Iterable[Message]) -> bytes:
    pieces = [each.SerializeToString()[:255] for each in messages]
    return b"".join(bytes((len(each),)) + each for each in pieces)


if __name__ == "__main__":
    for name, sound in seeds().items():
        corpus.write(name, [*corpus.read(name), *sound])
