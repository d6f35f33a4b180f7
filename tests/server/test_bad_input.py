"""Requests and bytes that make no sense are refused by name, and the server goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, cast

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from gradwire import (
    Client,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
    ops,
    v1,
)
from gradwire._wire.framing import varint
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.rpc.codec import DATA, beside_data
from support.clients import AWAITED, COPY
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    SERVICE,
    ManyCall,
    RawClient,
    call,
    ended,
    float32,
    identity_request,
    named,
    opening,
    published_request,
    refused,
    send_bytes,
)
from support.refusals import Refusal, check_in_band, refusal_of
from support.servers import ServerThread

Change = Callable[[v1.EvaluateRequest], None]

NAN, INF = math.nan, math.inf
INT64 = 2**63 - 1


pytestmark = pytest.mark.usefixtures("still_alive")


def dml(**fields: Any) -> Change:
    """Set attributes of dml_resample_grad in place of the published ones."""

    def change(request: v1.EvaluateRequest) -> None:
        attributes = request.operator.dml_resample_grad
        for name in fields:
            cast("Message", attributes).ClearField(name)
        attributes.MergeFrom(v1.DmlResample(**fields))

    return change


def interpolate(**fields: Any) -> Change:
    """Ask for interpolate_backward of a 1x1x4 tensor with these attributes."""

    def change(request: v1.EvaluateRequest) -> None:
        given: dict[str, Any] = {"mode": v1.Interpolate.MODE_LINEAR, **fields}
        attributes = v1.Interpolate(**given)
        request.operator.interpolate_backward.CopyFrom(attributes)
        tensors(float32(1, 4, 1))(request)
        request.data = bytes(16)

    return change


def tensors(source: v1.TensorDescriptor, result: v1.TensorDescriptor | None = None) -> Change:
    """Describe the tensors in another way, and take the scales away."""

    def change(request: v1.EvaluateRequest) -> None:
        if request.operator.HasField("dml_resample_grad"):
            request.operator.dml_resample_grad.ClearField("scales")
        request.input.CopyFrom(source)
        request.output.CopyFrom(result or source)

    return change


def result(descriptor: v1.TensorDescriptor) -> Change:
    """Describe the result in another way."""
    return lambda request: request.output.CopyFrom(descriptor)


def source(descriptor: v1.TensorDescriptor) -> Change:
    """Describe the input in another way."""
    return lambda request: request.input.CopyFrom(descriptor)


def typed(number: int, *sizes: int) -> v1.TensorDescriptor:
    """Describe a tensor of an element type by its number, known or not."""
    descriptor = v1.TensorDescriptor(sizes=sizes)
    descriptor.MergeFromString(b"\x08" + bytes([number]))
    return descriptor


def unset(name: str) -> Change:
    """Leave a field out."""
    return lambda request: cast("Message", request).ClearField(name)


def rename(request_id: str) -> Change:
    """Name the request."""
    return lambda request: setattr(request, "request_id", request_id)


GRAD = "operator.dml_resample_grad."
BACKWARD = "operator.interpolate_backward."

# What is wrong, the path of the field at fault, and words of what came and what would do.
BAD_FIELDS: dict[str, tuple[Change, str, list[str]]] = {
    "operator unset": (unset("operator"), "operator", ["dml_resample_grad", "interpolate"]),
    "mode unset": (dml(interpolation_mode=0), GRAD + "interpolation_mode", ["missing", "linear"]),
    "mode unknown": (dml(interpolation_mode=99), GRAD + "interpolation_mode", ["99", "LINEAR"]),
    "rounding unknown": (dml(nearest_rounding=3), GRAD + "nearest_rounding", ["3", "HALF_UP"]),
    "rounding negative": (dml(nearest_rounding=-1), GRAD + "nearest_rounding", ["-1"]),
    "convention unknown": (dml(offset_convention=7), GRAD + "offset_convention", ["7", "SWAPPED"]),
    "scale nan": (dml(scales=[1, NAN]), GRAD + "scales[1]", ["nan", "finite"]),
    "scale inf": (dml(scales=[INF, 1]), GRAD + "scales[0]", ["inf", "finite"]),
    "scale zero": (dml(scales=[0, 1]), GRAD + "scales[0]", ["0.0", "above 0"]),
    "scale negative": (dml(scales=[1, -2]), GRAD + "scales[1]", ["-2.0", "above 0"]),
    "offset nan": (dml(input_pixel_offsets=[NAN, 0]), GRAD + "input_pixel_offsets[0]", ["nan"]),
    "offset inf": (dml(output_pixel_offsets=[0, -INF]), GRAD + "output_pixel_offsets[1]", ["-inf"]),
    "scales too few": (dml(scales=[1]), GRAD + "scales", ["1", "2"]),
    "scales too many": (dml(scales=[1, 1, 1]), GRAD + "scales", ["3", "2"]),
    "scales absurd": (dml(scales=[1] * 1_000), GRAD + "scales", ["more than 8"]),
    "offsets too few": (dml(input_pixel_offsets=[1]), GRAD + "input_pixel_offsets", ["1", "2"]),
    "interpolate mode unset": (interpolate(mode=0), BACKWARD + "mode", ["missing"]),
    "interpolate mode unknown": (interpolate(mode=5), BACKWARD + "mode", ["5", "MODE_LINEAR"]),
    "format unknown": (interpolate(data_format=3), BACKWARD + "data_format", ["3", "NCX"]),
    "size zero": (interpolate(sizes=[0]), BACKWARD + "sizes[0]", ["0", "1"]),
    "size negative": (interpolate(sizes=[-4]), BACKWARD + "sizes[0]", ["-4", "1"]),
    "size wrong": (interpolate(sizes=[5]), BACKWARD + "sizes[0]", ["5", "4"]),
    "size beyond all": (interpolate(sizes=[INT64]), BACKWARD + "sizes[0]", [str(INT64), "4"]),
    "sizes too many": (interpolate(sizes=[4, 4]), BACKWARD + "sizes", ["2", "1"]),
    "scale disagrees": (interpolate(scales=[3]), BACKWARD + "scales[0]", ["3", "4"]),
    "input missing": (unset("input"), "input.data_type", ["0", "DATA_TYPE_FLOAT32"]),
    "type unset": (source(typed(0, 1, 3)), "input.data_type", ["0", "DATA_TYPE_FLOAT32"]),
    "type unknown": (source(typed(5, 1, 3)), "input.data_type", ["5", "DATA_TYPE_FLOAT64"]),
    "output type unknown": (result(typed(9, 2, 2)), "output.data_type", ["9"]),
    "types differ": (result(typed(4, 2, 2)), "output.data_type", ["float64", "float32"]),
    "rank 0": (tensors(float32()), "input.sizes", ["0 axes", "1 to 8"]),
    "rank 9": (tensors(float32(*[1] * 9)), "input.sizes", ["9 axes", "1 to 8"]),
    "rank absurd": (tensors(float32(*[1] * 1_000)), "input.sizes", ["1000 axes"]),
    "result of rank 0": (result(float32()), "output.sizes", ["0 axes"]),
    "ranks differ": (result(float32(2, 2, 1)), "output.sizes", ["3 axes", "2"]),
    "input of negative size": (tensors(float32(-3, 1)), "input.sizes[0]", ["-3", "at least 0"]),
    "result of size 0": (result(float32(0, 2)), "output.sizes[0]", ["0", "at least 1"]),
    "result of negative size": (result(float32(2, -(2**63))), "output.sizes[1]", [str(-(2**63))]),
    "input past int64": (tensors(float32(2**32, 2**32)), "input.sizes", ["2**63"]),
    "input just past int64": (tensors(float32(2**61)), "input.sizes", ["2**63"]),
    "input far past int64": (tensors(float32(*[INT64] * 8)), "input.sizes", ["2**63"]),
    "result past int64": (result(float32(INT64, INT64)), "output.sizes", ["2**63"]),
    "broadcast input past int64": (
        tensors(float32(INT64, INT64, strides=(0, 0)), float32(1, 1)),
        "input.sizes",
        ["2**63"],
    ),
    "strides too few": (tensors(float32(2, 2, strides=(1,))), "input.strides", ["1", "2"]),
    "strides absurd": (tensors(float32(2, strides=(1,) * 1_000)), "input.strides", ["1000"]),
    "stride negative": (tensors(float32(2, 2, strides=(2, -1))), "input.strides[1]", ["-1"]),
    "strides equal": (tensors(float32(2, 2, strides=(1, 1))), "input.strides[1]", ["1", "2"]),
    "strides overlap": (tensors(float32(2, 4, strides=(3, 1))), "input.strides[0]", ["3", "4"]),
    "strides interleave": (tensors(float32(2, 3, strides=(1, 1))), "input.strides[1]", ["1"]),
    "result overlaps": (
        tensors(float32(2, 4), float32(2, 4, strides=(2, 1))),
        "output.strides[0]",
        ["2", "4"],
    ),
    "result broadcast": (
        tensors(float32(2, 4), float32(2, 4, strides=(0, 1))),
        "output.strides[0]",
        ["0", "overlap"],
    ),
    "stride past int64": (tensors(float32(2, 2, strides=(2**61, 1))), "input.strides", ["2**63"]),
    "strides past int64 in all": (
        tensors(float32(INT64, INT64, strides=(INT64, 1))),
        "input.sizes",
        ["2**63"],
    ),
    "result stride past int64": (
        tensors(float32(2, 2), float32(2, 2, strides=(INT64, 1))),
        "output.strides",
        ["2**63"],
    ),
    "name too long": (rename("x" * 129), "request_id", ["129", "128"]),
    "name absurd": (rename("x" * 10_000), "request_id", ["10000"]),
    "name not ASCII": (rename("f\u00fcr"), "request_id", ["ASCII"]),
    "name of two lines": (rename("a\nb"), "request_id", ["printable"]),
    "name with a zero": (rename("a\0b"), "request_id", ["printable"]),
}


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize(("change", "path", "words"), BAD_FIELDS.values(), ids=list(BAD_FIELDS))
def test_a_bad_field_is_named_with_what_came_and_what_would_do(
    client: RawClient, change: Change, path: str, words: list[str], how: str
) -> None:
    request = published_request()
    change(request)
    answer = client.ask(request, how)
    refusal = refused(answer, "INVALID_FIELD", field=path)
    for word in words:
        assert word in refusal.message
    if how == "EvaluateStream":
        check_in_band(refusal)
        assert answer.opened is None


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize("name", ["dml_resample_grad", "dml_resample", "interpolate_backward"])
def test_an_absent_result_that_attributes_do_not_determine_is_asked_for(
    client: RawClient, name: str, how: str
) -> None:
    request = identity_request(1, 1, 2, data=bytes(8))
    request.operator.Clear()
    getattr(request.operator, name).MergeFromString(b"\x08\x02")  # linear in DirectML
    request.ClearField("output")
    refused(client.ask(request, how), "INVALID_FIELD", field="output")


@pytest.mark.parametrize("count", [0, 1, 11, 13, 1_000_000])
def test_evaluate_takes_just_the_bytes_that_the_descriptor_promises(
    client: RawClient, count: int
) -> None:
    request = published_request()
    request.data = bytes(count)
    refusal = refused(client.evaluate(request), "INVALID_DATA", field="data")
    assert str(count) in refusal.message
    assert "12" in refusal.message


OPEN_NUMBERS = {
    "resume_from": [-1, 16, 17, INT64, -(2**63)],
    "max_chunk_bytes": [-1, -(2**63), 1, 4095],
    "stop_before": [-1, 17, INT64, -(2**63)],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, each) for name in OPEN_NUMBERS for each in OPEN_NUMBERS[name]]
)
def test_a_number_of_open_that_is_out_of_range_is_named(
    client: RawClient, name: str, number: int
) -> None:
    message = opening(published_request(), **{name: number})
    refusal = ended(client.stream([message]), "INVALID_FIELD", field=f"open.{name}")
    assert str(number) in refusal.message


@pytest.mark.parametrize("digest", ["0" * 64, "x" * 10_000, "\U0001f600" * 2_000, "a\r\n\0b"])
def test_a_digest_of_another_evaluation_is_aborted_in_a_short_message(
    client: RawClient, digest: str
) -> None:
    message = opening(published_request(), evaluation_digest=digest)
    ended(client.stream([message]), "EVALUATION_CHANGED")


GRADIENT = np.array([[4, 5, 6]], "f4")
NEAREST = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))
TOO_FEW = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1,))
ROW = np.ones((1, 4, 1), "f4")


def backward(**attributes: Any) -> ops.Operator:
    return ops.InterpolateBackward(mode="linear", **attributes)


def caught(server: ServerThread, how: str, *call: Any, **options: Any) -> GradwireError:
    """Evaluate in this way and return the error."""
    face = AWAITED if "async" in how else Client
    threshold = 1 if "stream" in how else 1 << 20
    with face(server.address, stream_threshold_bytes=threshold) as client:
        evaluate: Any = client.evaluate
        with pytest.raises(GradwireError) as error:
            evaluate(*call, **options)
    return error.value


# Operator, input, shape of the result, the path of the field at fault, words of the message. The
# SDK sees the first ones for what they are, the server the others.
BAD: dict[str, tuple[ops.Operator, Any, Any, str, list[str]]] = {
    "rank 0": (NEAREST, np.float32(1), (1,), "input.sizes", ["0 axes", "1 to 8"]),
    "rank 9": (NEAREST, np.ones((1,) * 9, "f4"), (1,) * 9, "input.sizes", ["9 axes", "1 to 8"]),
    "size 0": (NEAREST, np.ones((2, 0), "f4"), (2, 2), "input.sizes[1]", ["0"]),
    "integers": (NEAREST, np.ones((1, 3), "i4"), (2, 2), "input.data_type", ["int32", "float32"]),
    "result of rank 0": (NEAREST, GRADIENT, (), "output.sizes", ["0 axes"]),
    "result of size 0": (NEAREST, GRADIENT, (2, 0), "output.sizes[1]", ["0"]),
    "result of negative size": (NEAREST, GRADIENT, (-2, 2), "output.sizes[0]", ["-2"]),
    "result past int64": (NEAREST, GRADIENT, (2**63, 1), "output.sizes[0]", [str(2**63)]),
    "result of 2**63 bytes": (NEAREST, GRADIENT, (2**61, 1), "output.sizes", ["2**63"]),
    "ranks differ": (NEAREST, GRADIENT, (2, 2, 1), "output.sizes", ["3", "2"]),
    "scales too few": (TOO_FEW, GRADIENT, (2, 2), GRAD + "scales", ["1", "2"]),
    "no result asked for": (NEAREST, GRADIENT, None, "output", ["dml_resample_grad"]),
    "no room for an image": (backward(), GRADIENT, (2, 2), "input.sizes", ["2", "3"]),
    "size of another": (backward(sizes=(5,)), ROW, (1, 2, 1), BACKWARD + "sizes[0]", ["5", "4"]),
    "scale of another": (backward(scales=(3,)), ROW, (1, 4, 1), BACKWARD + "scales[0]", ["3", "4"]),
}
# The argument that the SDK names for a field of the wire; an attribute has the last part as name.
WRITTEN = {
    "data": "array",
    "input": "array",
    "input.sizes": "array.shape",
    "input.data_type": "array.dtype",
    "output": "output_shape",
    "output.sizes": "output_shape",
}
HOWS = ["unary", "stream", "async unary", "async stream"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_an_invalid_request_that_names_the_field(
    server: ServerThread, name: str, how: str
) -> None:
    operator, array, shape, path, words = BAD[name]
    error = caught(server, how, operator, array, output_shape=shape)
    assert isinstance(error, InvalidRequestError)
    assert isinstance(error, ValueError)
    assert error.reason == "INVALID_FIELD"
    assert error.field == path
    assert str(error).startswith(f"{WRITTEN.get(path.partition('[')[0]) or path.split('.')[-1]}")
    assert not re.search(r"\b(input|output|operator)\.", str(error)), "a path of the wire"
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("shape", "limit"),
    [((1 << 18, 1 << 19), "max_elements"), (((1 << 23) + 1,), "max_float32_axis")],
    ids=["elements", "axis"],
)
def test_a_request_beyond_a_limit_names_it(
    server: ServerThread, shape: tuple[int, ...], limit: str, how: str
) -> None:
    huge = np.broadcast_to(np.float32(1), shape)
    error = caught(server, how, COPY, huge, output_shape=(1,) * len(shape))
    assert isinstance(error, LimitExceededError)
    assert error.limit == limit
    assert str(huge.size) in str(error)
    assert error.request_id


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_attribute_that_is_no_scale_never_leaves_the_caller(number: float) -> None:
    with pytest.raises(InvalidRequestError) as error:
        ops.DmlResampleGrad(interpolation_mode="linear", scales=(1, number))
    assert error.value.field == "operator.dml_resample_grad.scales[1]"


GARBAGE = {
    "a tag without a value": b"\x0a",
    "a length beyond the end": b"\x12\xff\xff\xff\x7f",
    "a group that does not end": b"\x0b",
    "no UTF-8": b"\x0a\x02\xc3\x28",
    "noise": bytes(range(255, 0, -1)),
}


# GetServerInfo and ListOperators have no fields: the text of an unknown field is not decoded.
CALLS = [
    *(
        pytest.param("Evaluate", garbage, id=f"Evaluate, {name}")
        for name, garbage in GARBAGE.items()
    ),
    *(
        pytest.param(method, garbage, id=f"{method}, {name}")
        for method in ("ListOperators", "GetServerInfo")
        for name, garbage in GARBAGE.items()
        if name != "no UTF-8"
    ),
]


after = pytest.mark.parametrize("before", [0, 1], ids=["first", "after open"])
OPEN = opening(published_request()).SerializeToString()


@pytest.mark.parametrize(("method", "garbage"), CALLS)
def test_bytes_that_are_no_message_are_refused_as_invalid_data(
    client: RawClient, method: str, garbage: bytes
) -> None:
    refusal = refused(send_bytes(client, method, garbage), "INVALID_DATA", field="message")
    assert f"{len(garbage)} bytes" in refusal.message


@after
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_message_of_a_stream_are_refused_as_invalid_data(
    client: RawClient, garbage: bytes, before: int
) -> None:
    # Field 1 is open, a message: what is inside it need not be one either.
    wrapped = b"\x0a" + bytes([len(garbage)]) + garbage if len(garbage) < 128 else garbage
    refusal = send_bytes(client, "EvaluateStream", *[OPEN][:before], wrapped)
    ended(refusal, "INVALID_DATA", field="message")


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_request_among_many_end_the_stream(
    client: RawClient, garbage: bytes
) -> None:
    good = named(published_request(), "good").SerializeToString()
    with ManyCall.of_bytes(client, good, field(1, garbage)) as call:
        ended(call.refusal(), "INVALID_DATA", field="message")


def test_a_unary_call_without_a_request_is_refused_as_invalid_data(client: RawClient) -> None:
    _, refusal = call(client.channel, f"{SERVICE}/Evaluate", ())
    refused(refusal, "INVALID_DATA", field="message")


LARGE = 15 << 20


def field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


FILLINGS = {
    "empty fields": b"\x12\x00" * (LARGE // 2),
    "empty data": b"\x7a\x00" * (LARGE // 2),
    "unknown numbers": b"\x30\x01" * (LARGE // 2),
    "unknown groups": b"\x33\x34" * (LARGE // 2),
    "an unknown field": field(20, bytes(LARGE)),
    "long sizes": field(3, b"\x10\x01" * (LARGE // 2)),
    "a long name": field(1, b"n" * LARGE),
    "data behind a group": b"\x33\x34" + field(15, bytes(LARGE)),
}
fillings = pytest.mark.parametrize("filling", FILLINGS.values(), ids=list(FILLINGS))


def check_too_long(refusal: Refusal | None) -> Refusal:
    checked = refused(
        refusal, "INVALID_DATA", field="message", limit="max_header_bytes", allowed=MAX_HEADER_BYTES
    )
    assert f"at most {MAX_HEADER_BYTES} (max_header_bytes) are read" in checked.message
    return checked


@pytest.mark.parametrize("method", ["Evaluate", "ListOperators", "GetServerInfo"])
@fillings
def test_a_request_is_refused(client: RawClient, method: str, filling: bytes) -> None:
    check_too_long(send_bytes(client, method, filling + field(6, b"")))


@after
@pytest.mark.parametrize("inside", [1, 2], ids=["open", "chunk"])
@fillings
def test_a_message_of_a_stream_is_refused(
    client: RawClient, filling: bytes, inside: int, before: int
) -> None:
    message = field(inside, filling)
    refusal = send_bytes(client, "EvaluateStream", *[OPEN][:before], message)
    check_in_band(check_too_long(refusal))


@fillings
def test_a_request_among_many_ends_the_stream(client: RawClient, filling: bytes) -> None:
    message = field(1, field(1, b"name") + filling + field(6, b""))
    with ManyCall.of_bytes(client, message) as call:
        check_in_band(check_too_long(call.refusal()))


def test_requests_among_many_whose_names_can_be_read_are_refused_alone(client: RawClient) -> None:
    usual = named(published_request(), "good")
    evaluation = published_request()
    evaluation.input.sizes.extend([1] * MAX_HEADER_BYTES)
    with ManyCall(client) as call:
        call.send(named(evaluation, "long"), named(published_request(), "line\nbreak"), usual)
        answers = call.answers()
    assert answers["line\nbreak"].error.field_violations[0].field == "request_id"
    assert answers["good"].HasField("result")
    error = answers["long"].error
    assert error.metadata["limit"] == "max_header_bytes"
    assert error.field_violations[0].field == "message"


def of_length(count: int) -> bytes:
    """Encode an evaluation with so many bytes beside its data, most of them in an unknown field."""
    request = published_request()
    data = request.data
    request.ClearField("data")
    head = request.SerializeToString() + b"\x7a" + varint(len(data))
    rest = count - len(head)
    padding = field(6, bytes(rest - 3))
    assert len(padding) == rest
    return padding + head + data


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (MAX_HEADER_BYTES, grpc.StatusCode.UNIMPLEMENTED),
        (MAX_HEADER_BYTES + 1, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_the_limit_is_exact(client: RawClient, count: int, code: grpc.StatusCode) -> None:
    refusal = send_bytes(client, "Evaluate", of_length(count))
    assert refusal is not None
    assert refusal.code is code


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1 << 20])
def test_the_data_do_not_count_wherever_they_are(size: int) -> None:
    request = published_request()
    request.data = bytes(size)
    usual = request.SerializeToString()
    data = field(15, bytes(size)) if size else b""
    head = usual[: len(usual) - len(data)]
    for message in (usual, data + head, data + head + data):
        expected = len(message) - size * message.count(data) if size else len(message)
        assert beside_data(message) == expected
        among_many = field(1, message)
        assert beside_data(among_many, {1: DATA}) == len(among_many) - len(message) + expected
    # Of a field beside the one it is looked for in it is as good as anything else.
    elsewhere = field(2, data)
    assert beside_data(elsewhere, {1: DATA}) == len(elsewhere)


@pytest.mark.parametrize(("size", "served"), [(7 << 10, True), (16 << 10, False)])
def test_metadata_are_read_up_to_the_limits_of_grpc(
    client: RawClient, size: int, *, served: bool
) -> None:
    metadata = (("name", "x" * size),)
    if served:
        for _ in range(20):
            client.stub.Evaluate(published_request(), timeout=PATIENCE_S, metadata=metadata)
        return
    with pytest.raises(grpc.RpcError) as refused:
        client.stub.Evaluate(published_request(), timeout=PATIENCE_S, metadata=metadata)
    refusal = refusal_of(refused.value)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "received metadata size exceeds hard limit" in refusal.message
