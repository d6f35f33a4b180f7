"""What a corpus starts with: a sound input of each kind.

PYTHONPATH=tests python -m fuzz.seeds    adds them to tests/fuzz/corpus
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from google.protobuf.message import Message

from contract.wire_exchange import requests
from fuzz import corpus
from gradwire import v1
from support.inference_calls import infer_request
from support.oracles.golden_bytes import GOLDEN
from support.raw_calls import TRACEPARENT, as_stream, float32, published_request


def _inferences() -> Iterator[Message]:
    """Yield requests of the Open Inference Protocol, with contents of every kind."""
    x = np.ones((1, 1, 4, 4), np.float32)
    yield infer_request(x)
    named = infer_request(x, model="torch_upsample_backward", mode="bilinear", antialias=False)
    named.id = "a request"
    named.inputs.add(name="output_shape", datatype="INT64", shape=[4])
    named.raw_input_contents.append(np.array([1, 1, 2, 2], "<i8").tobytes())
    yield named
    typed = infer_request(x, model="dml_resample", scales="[1, 1, 1, 1]", output_shape="[1,1,4,4]")
    typed.parameters["interpolation_mode"].string_param = "linear"
    typed.ClearField("raw_input_contents")
    typed.inputs[0].contents.fp32_contents.extend([1.0] * 16)
    typed.outputs.add(name="y")
    yield typed
    shared = infer_request(x)
    shared.ClearField("raw_input_contents")
    shared.inputs[0].parameters["shared_memory_region"].string_param = "region"
    shared.inputs[0].parameters["shared_memory_byte_size"].int64_param = 64
    yield shared


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
        "infer": [each.SerializeToString() for each in _inferences()],
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
