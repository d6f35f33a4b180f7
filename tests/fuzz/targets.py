"""Every place where bytes of the other end are read, as functions of these bytes.

A target returns where its law holds and raises AssertionError where it does not. The laws of the
server: what comes is answered with the bits that the dense reading of its message gives, or is
refused by an error of gradwire_server.errors that tells why, and never with INTERNAL. Of the
SDK: what comes is a result, or a GradwireError.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np

from gradwire import ops, v1
from gradwire._core.batch import parse_answer
from gradwire._core.evaluation import ResultBuffer, Transfer
from gradwire._core.reports import read_timing
from gradwire._core.retries import is_retryable
from gradwire._wire.framing import Parts, read_chunk, read_many_result
from gradwire._wire.requests import ArrayRequest, prepare
from gradwire._wire.statuses import from_in_band, from_status
from gradwire.errors import GradwireError
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.config.models import read_models
from gradwire_server.config.settings import MAX_HEADER_BYTES, Settings
from gradwire_server.engine import at_once
from gradwire_server.observability import recording
from gradwire_server.rpc import batch, codec, status_map
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.open_inference.requests import ModelInferRequest, Models
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.scheduling.device_watch import DeviceWatch
from support.nobody import a_call
from support.raw_calls import parsed

Outcome = bytes | tuple[str, str]

HALVE = ops.InterpolateBackward(mode="linear", data_format="NCX")
SMALL = np.arange(6, dtype=np.float32).reshape(1, 1, 6)

# Small, so that whatever is allowed takes no time.
_MOST = 1 << 12
_LIMITS: dict[str, Any] = {"max_elements": _MOST, "max_table_entries": _MOST, "max_work": 1 << 16}
_LIMITS["max_request_memory_bytes"] = 1 << 20
_MOST_CHUNKS = 8
# How bytes are refused that are no message to protobuf.
_NO_MESSAGE = {"INVALID_DATA", "CHECKSUM_MISMATCH"}
# Its results must not depend on the messages it has read before.
_NAMED = read_models('up=torch_upsample_backward:{"mode":"bilinear","output_shape":[1,1,2,2]}')
_MODELS = Models(_NAMED)


def evaluate(data: bytes) -> None:
    """Read the bytes as the server reads the request of Evaluate."""
    outcome = _outcome(lambda: _run(codec.read_evaluate(data)[0]))
    message = parsed(v1.EvaluateRequest, data)
    if message is not None and message.HasField("checksum"):
        # Its bytes count: protobuf may write others, which the checksum does not match.
        assert isinstance(outcome, bytes) or outcome[0] != "INTERNAL"
    elif message is not None and codec.beside_data(data) <= MAX_HEADER_BYTES:
        again = v1.EvaluateRequest.FromString(message.SerializeToString())
        assert outcome == _outcome(lambda: _run(codec.parts_of(again)))
    elif message is None:
        assert outcome[0] in _NO_MESSAGE


def evaluate_many(data: bytes) -> None:
    """Read the bytes as the server reads a request of EvaluateMany."""
    outcome = _outcome(lambda: _run(batch.read_item(data)[0]))
    message = parsed(v1.EvaluateManyRequest, data)
    if message is None:
        assert outcome[0] in _NO_MESSAGE
    elif isinstance(outcome, bytes):
        written = message.evaluation.SerializeToString()
        assert outcome == _outcome(lambda: _run(codec.read_evaluate(written)[0]))


def evaluate_stream(data: bytes) -> None:
    """Read them as the server reads EvaluateStream, each message after its length in one byte."""
    for piece in pieces(data):
        message = parsed(v1.EvaluateStreamRequest, piece)
        opened, chunk = _outcome(partial(_open, piece)), _outcome(partial(_chunk, piece))
        if isinstance(opened, bytes):
            assert message is not None
            assert opened == message.open.SerializeToString()
            _outcome(partial(_opened, message.open))
        if isinstance(chunk, bytes):
            assert message == v1.EvaluateStreamRequest(chunk=v1.Chunk.FromString(chunk))
        for outcome in (opened, chunk):
            if isinstance(outcome, tuple) and message is None:
                assert outcome[0] in _NO_MESSAGE


def _open(message: bytes) -> bytes:
    return codec.read_open(message).SerializeToString()


def _chunk(message: bytes) -> bytes:
    offset, data = codec.read_chunk(message, None)
    return v1.Chunk(offset=offset, data=data.tobytes()).SerializeToString()


def infer(data: bytes) -> None:
    """Read the bytes as the server reads ModelInfer, first and again, and as protobuf writes it."""
    outcome = _outcome(lambda: _inferred(_MODELS, data))
    assert outcome == _outcome(lambda: _inferred(_MODELS, data))
    assert outcome == _outcome(lambda: _inferred(Models(_NAMED), data))
    message = parsed(ModelInferRequest, data)
    if message is None:
        assert isinstance(outcome, tuple)
    elif isinstance(outcome, bytes):
        written = message.SerializeToString()
        assert outcome == _outcome(lambda: _inferred(Models(_NAMED), written))


def _inferred(models: Models, data: bytes) -> bytes:
    name, inference, contents = models.read(data)
    name = codec.read_request_id(name)
    service = _service_context()
    request = codec.read_header(inference.header)
    prepared = _at_once(service.prepare(request, a_call()))
    if inference.source is None:
        codec.check_data_length(len(contents), prepared.request)
        result = at_once(prepared, bytes(contents), service.backend)
        return inference.reply(name, result.data)
    return b""


def names(data: bytes) -> None:
    """Read them as request ids and trace contexts, which go into logs and trailing metadata."""
    text = data.decode("latin-1")
    outcome = _outcome(lambda: codec.read_request_id(text).encode())
    assert outcome == data or isinstance(outcome, tuple)
    assert not isinstance(outcome, bytes) or text.isprintable() or not text
    kept = recording.traceparent_of([("traceparent", text), ("traceparent-bin", data)])
    assert kept.isprintable()
    assert len(kept) == len("00-") + 32 + 1 + 16 + 3


def answer(data: bytes) -> None:
    """Read the bytes as the SDK reads the answer of Evaluate."""
    with suppress(GradwireError):
        assert _job().unary_result(data).shape == (1, 1, 3)


def answers(data: bytes) -> None:
    """Read the bytes as the SDK reads an answer of EvaluateMany."""
    with suppress(GradwireError):
        found = read_many_result(data, lambda _: None)
        outcome = parse_answer(data)[1] if found is None else found[0][1:]
        if not isinstance(outcome, GradwireError):
            _job().template.result(*outcome, out=None)


def streamed(data: bytes) -> None:
    """Read them as the SDK reads answers of EvaluateStream, each after its length in one byte."""
    buffer = ResultBuffer(_job())
    transfer = Transfer(_job(), buffer, chunk_bytes=16)
    with suppress(GradwireError):
        transfer.begin()
        for piece in pieces(data):
            chunk = read_chunk(piece)
            if chunk is not None:
                transfer.store(*chunk)
                continue
            response = parsed(v1.EvaluateStreamResponse, piece)
            if response is None:
                break
            if response.HasField("opened"):
                transfer.accept(response.opened)
            elif response.HasField("chunk"):
                transfer.store(response.chunk.offset, response.chunk.data)
            elif response.HasField("error"):
                raise from_in_band(response.error)

    assert not transfer.complete or buffer.array is not None


def statuses(data: bytes) -> None:
    """Read them as the SDK reads a status, its details, errors in-band and phases of a call."""
    text = data.decode("latin-1")
    code = data[0] if data else 0
    found = [from_status(code, text, data), from_status(text, text, data)]
    error = parsed(v1.Error, data)
    if error is not None:
        found.append(from_in_band(error))
    for each in found:
        assert isinstance(each, GradwireError)
        assert isinstance(is_retryable(each, streamed=True), bool)
        assert str(each)
        assert getattr(each, "retry_after_s", 0.0) >= 0
    timing = read_timing([("gradwire-timing", text)], total_s=1.0, tries=1)
    assert timing.total_s == 1.0


_SERVER = (evaluate, evaluate_many, evaluate_stream, infer, names)
_CLIENT = (answer, answers, streamed, statuses)
TARGETS: dict[str, Callable[[bytes], None]] = {one.__name__: one for one in (*_SERVER, *_CLIENT)}


def _outcome(work: Callable[[], bytes]) -> Outcome:
    """Return the result, or reason and message of the refusal."""
    try:
        return work()
    except Exception as error:
        failed = status_map.failure(error)
        if failed.reason_name == "INTERNAL":
            raise
        assert failed.message.isprintable()
        assert len(failed.details()) + len(failed.message) < 4096
        failed.in_band()
        return failed.reason_name, failed.message


@cache
def _service_context() -> ServiceContext:
    settings = Settings(**_LIMITS, compute_threads=1)
    watch = DeviceWatch(stall_timeout_s=settings.stall_timeout_s)
    service = ServiceContext(settings, ActiveCalls(recording.Observer()), watch, NumpyCpu())
    service.ready.set()
    return service


def _run(parts: Parts) -> bytes:
    _, header, data = parts
    service = _service_context()
    prepared = _at_once(service.prepared(header, a_call(), method="EvaluateMany"))
    codec.check_data_length(len(data), prepared.request)
    return at_once(prepared, bytes(data), service.backend).tobytes()


def _opened(header: v1.Open) -> bytes:
    prepared = _at_once(_service_context().prepare(codec.read_request(header), a_call()))
    return bytes(prepared.digest, "ascii")


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Do what waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield some messages, each after its length in one byte."""
    for _ in range(_MOST_CHUNKS):
        if data:
            yield data[1 : 1 + data[0]]
            data = data[1 + data[0] :]


@cache
def _job() -> ArrayRequest:
    return prepare(HALVE, SMALL, output_shape=(1, 1, 3), out=None)
