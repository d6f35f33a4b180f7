"""Servers and SDKs of other releases: each serves or names what it does not know.

PYTHONPATH=tests python -m contract.test_releases

writes a request for each operator and its answer to tests/data, for later releases.
"""

import json
import struct
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, InvalidRequestError, Item, ops, v1
from gradwire._wire.framing import varint
from gradwire._wire.requests import prepare
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support import raw_calls, relay
from support.clients import ONCE
from support.oracles.dialect_tables import EXAMPLES
from support.raw_calls import RawClient, published_request
from support.servers import serving

HALVE = ops.InterpolateBackward(mode="linear", data_format="NCX")
ARRAYS = {
    "Evaluate": np.arange(96, dtype=np.float32).reshape(1, 3, 32),
    "EvaluateStream": np.arange(1 << 18, dtype=np.float32).reshape(1, 4, 1 << 16),
}
EXCHANGE = Path(__file__).parents[1] / "data" / "exchange.json"
EVALUATIONS = json.loads(EXCHANGE.read_text())["evaluations"]
assert len(EVALUATIONS) == 16
OTHERS = [
    pytest.param(relay.newer, True, id="newer"),
    pytest.param(relay.older, True, id="older"),
    pytest.param(relay.older, False, id="older, no trailers"),
]


@pytest.fixture(scope="module")
def server():
    with serving(backend=NumpyCpu()) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with RawClient(server.address) as client:
        yield client
        client.check_alive()


@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_an_sdk_of_a_release_before_sends_has_the_answer_it_had(client, name):
    sent, expected = (bytes.fromhex(EVALUATIONS[name][key]) for key in ("request", "answer"))
    method = f"{raw_calls.SERVICE}/Evaluate"
    assert raw_calls.call(client.channel, method, [sent]) == ([expected], None)
    request = v1.EvaluateRequest.FromString(sent)
    result = v1.EvaluateResponse.FromString(expected)
    assert client.stream(raw_calls.as_stream(request)).data == result.data
    message = v1.EvaluateManyRequest(evaluation=request)
    with raw_calls.ManyCall.of_bytes(client, message.SerializeToString()) as many:
        assert many.receive().result == result


def requests():
    """Return the first example of every operator, in float32, by its name."""
    made = {}
    for example in EXAMPLES.values():
        job = prepare(example.operator, example.given(), output_shape=example.result, out=None)
        request = v1.EvaluateRequest.FromString(job.unary_request()[0])
        request.request_id = raw_calls.REQUEST_ID
        made.setdefault(example.operator.name, request)
    return made


@pytest.mark.parametrize("name", EVALUATIONS)
def test_this_sdk_writes_what_the_one_of_a_release_before_wrote(name):
    assert requests()[name].SerializeToString().hex() == EVALUATIONS[name]["request"]


@pytest.mark.parametrize(("change", "trailers"), OTHERS)
@pytest.mark.parametrize("array", ARRAYS.values(), ids=list(ARRAYS))
def test_this_sdk_is_served_by_servers_of_other_releases_and_understands_their_refusals(
    server, array, change, trailers
):
    shape = (*array.shape[:-1], array.shape[-1] // 2)
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    timings = []
    with Client(server.address) as client:
        expected = client.evaluate(HALVE, array, output_shape=shape)
    other = relay.skewed(server.address, change, trailers=trailers)
    with other as address, Client(address, retry=ONCE) as client:
        evaluate = partial(client.evaluate, output_shape=shape, on_timing=timings.append)
        np.testing.assert_array_equal(evaluate(HALVE, array), expected)
        assert len(timings) == 1
        for result in client.evaluate_many([Item(HALVE, array, shape)] * 3):
            np.testing.assert_array_equal(result, expected)
        assert client.server_info().version
        assert client.operators()
        with pytest.raises(InvalidRequestError, match="scales"):
            client.evaluate(wrong, array, output_shape=array.shape)


def _next_number(message):
    """Return a number that the next release may well take; 14 and 15 are taken at the end."""
    last = {"checksum", "data"}
    return max((field.number for field in message.fields if field.name not in last), default=0) + 1


OPERATOR_NUMBER = _next_number(v1.Operator.DESCRIPTOR)
every_way = pytest.mark.parametrize("how", ["Evaluate", "EvaluateStream"])


def merged(message, more):
    message.MergeFromString(more)
    return message


def with_newer_field(message, path=""):
    """Set a float that only a newer schema has, at a path in a message."""
    made = place = deepcopy(message)
    for step in filter(None, path.split(".")):
        place = getattr(place, step)
    number = _next_number(place.DESCRIPTOR)
    merged(place, varint(number << 3 | 5) + struct.pack("<f", 0.5))
    return made


def unimplemented(answer, how, reason="UNKNOWN_FIELD"):
    """Assert that a call was refused for what only a newer schema has, a stream in-band too."""
    return raw_calls.refused(answer, reason, in_band=how == "EvaluateStream")


# Paths to messages that a newer schema has a field more of.
NEWER_FIELDS = {
    **{
        f"operator.{member.name}": member.message_type
        for member in v1.Operator.DESCRIPTOR.fields
        if member.message_type is not None
    },
    **dict.fromkeys(["input", "output"], v1.TensorDescriptor.DESCRIPTOR),
    "options": v1.Options.DESCRIPTOR,
}


@every_way
@pytest.mark.parametrize("path", NEWER_FIELDS)
def test_a_field_of_a_newer_schema_is_refused_by_message_and_number(client, path, how):
    name, number = NEWER_FIELDS[path].full_name, _next_number(NEWER_FIELDS[path])
    request = published_request()
    if path.startswith("operator."):
        # With none of its attributes.
        getattr(request.operator, path.removeprefix("operator.")).SetInParent()
    refusal = unimplemented(client.ask(with_newer_field(request, path), how), how)
    assert f"field {number} of {name} at {path} " in refusal.message
    assert refusal.info.metadata["message_type"] == name
    assert refusal.info.metadata["field_number"] == str(number)


def test_a_newer_field_of_a_unary_header_is_refused(client):
    refusal = unimplemented(client.evaluate(with_newer_field(published_request())), "Evaluate")
    assert "field 6 of gradwire.v1.EvaluateRequest " in refusal.message


OPENING = raw_calls.opening(published_request())
CHUNK = raw_calls.chunk(0, published_request().data)
# Field 3 of the oneof, which holds a chunk; and field 9 beside a chunk.
NEWEST = v1.EvaluateStreamRequest.FromString(b"\x1a\x02\x08\x01")
BESIDE = merged(raw_calls.chunk(0, published_request().data), b"\x48\x01")
STREAMS = {
    "open": ([with_newer_field(OPENING, "open")], "10 of gradwire.v1.Open "),
    "chunk": ([OPENING, with_newer_field(CHUNK, "chunk")], "2 of gradwire.v1.Chunk at chunk "),
    "beside a chunk": ([OPENING, BESIDE], "9 of gradwire.v1.EvaluateStreamRequest "),
    "first": ([NEWEST], "3 of gradwire.v1.EvaluateStreamRequest "),
    "after open": ([OPENING, NEWEST], "3 of gradwire.v1.EvaluateStreamRequest "),
}


@pytest.mark.parametrize(("messages", "words"), STREAMS.values(), ids=list(STREAMS))
def test_newer_parts_of_a_stream_are_refused(client, messages, words):
    refusal = unimplemented(client.stream(messages), "EvaluateStream")
    assert f"field {words}" in refusal.message


@every_way
def test_an_operator_of_a_newer_schema_and_a_newer_field_beside_one_are_refused(client, how):
    request, number = published_request(), OPERATOR_NUMBER + 1
    # A field of no oneof, a varint.
    merged(request.operator, varint(number << 3) + b"\x01")
    refusal = unimplemented(client.ask(request, how), how)
    assert f"field {number} of gradwire.v1.Operator at operator " in refusal.message
    request.operator.Clear()
    # A message, as operators are.
    merged(request.operator, varint(OPERATOR_NUMBER << 3 | 2) + b"\x02\x08\x02")
    refusal = unimplemented(client.ask(request, how), how, "UNKNOWN_OPERATOR")
    assert str(OPERATOR_NUMBER) in refusal.message


@pytest.mark.parametrize(
    ("method", "told"), [("ListOperators", "operators"), ("GetServerInfo", "version")]
)
def test_questions_about_the_server_are_answered_to_a_newer_caller(client, method, told):
    question = getattr(v1, f"{method}Request").FromString(b"\x08\x01")
    assert getattr(getattr(client.stub, method)(question), told)


def record():
    evaluations = {}
    with serving(backend=NumpyCpu()) as server, RawClient(server.address) as client:
        for name, request in requests().items():
            answer = client.stub.Evaluate(request).SerializeToString(deterministic=True)
            evaluations[name] = {
                "request": request.SerializeToString().hex(),
                "answer": answer.hex(),
            }
        release = client.stub.GetServerInfo(v1.GetServerInfoRequest()).version
    exchange = {"release": release, "evaluations": evaluations}
    EXCHANGE.write_text(json.dumps(exchange, indent=1) + "\n")


if __name__ == "__main__":
    record()
