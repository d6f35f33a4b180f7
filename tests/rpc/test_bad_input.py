"""Invalid requests are refused by the name of the field or limit; errors tell no more."""

import inspect
import logging
import math
import re
import urllib.parse
from typing import cast

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from gradwire import Client, InvalidRequestError, LimitExceededError, ops, v1
from gradwire._wire.framing import varint
from gradwire_server import errors
from gradwire_server.backends import NumpyCpu
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.rpc.status_map import failure
from support import raw_calls
from support.clients import AWAITED, COPY
from support.raw_calls import call, float32, identity_request, opening, published_request, refused
from support.servers import served, served_many, wait_idle

NAN, INF = math.nan, math.inf
INT64 = 2**63 - 1

pytestmark = pytest.mark.usefixtures("still_alive")


def changed(**fields):
    """Ask for the published example with these fields in place of its own."""
    request = published_request()
    for name in fields:
        cast("Message", request).ClearField(name)
    request.MergeFrom(v1.EvaluateRequest(**fields))
    return request


def dml(**attributes):
    given = {"interpolation_mode": 1, "scales": (0.5, 1.5), **attributes}
    return changed(operator=v1.Operator(dml_resample_grad=v1.DmlResample(**given)))


def interpolate(**attributes):
    given = {"mode": v1.Interpolate.MODE_LINEAR, **attributes}
    operator = v1.Operator(interpolate_backward=v1.Interpolate(**given))
    row = float32(1, 4, 1)
    return changed(operator=operator, input=row, output=row, data=bytes(16))


def tensors(source, result=None):
    return changed(operator=dml(scales=()).operator, input=source, output=result or source)


def strided(*sizes, source=(), result=()):
    """Ask for a copy between tensors of these strides."""
    return tensors(float32(*sizes, strides=source), float32(*sizes, strides=result))


def typed(number, *sizes):
    return v1.TensorDescriptor(data_type=number, sizes=sizes)


GRAD = "operator.dml_resample_grad."
BACKWARD = "operator.interpolate_backward."

# What is wrong, the path of the field at fault, and words of what came and what would do.
BAD_FIELDS = {
    "operator unset": (changed(operator=None), "operator", ["dml_resample_grad", "interpolate"]),
    "mode unset": (dml(interpolation_mode=0), GRAD + "interpolation_mode", ["missing", "linear"]),
    "mode unknown": (dml(interpolation_mode=99), GRAD + "interpolation_mode", ["99", "LINEAR"]),
    "rounding unknown": (dml(nearest_rounding=3), GRAD + "nearest_rounding", ["3", "HALF_UP"]),
    "convention unknown": (dml(offset_convention=7), GRAD + "offset_convention", ["7", "SWAPPED"]),
    "rounding negative": (dml(nearest_rounding=-1), GRAD + "nearest_rounding", ["-1"]),
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
    "input missing": (changed(input=None), "input.data_type", ["0", "DATA_TYPE_FLOAT32"]),
    "type unset": (changed(input=typed(0, 1, 3)), "input.data_type", ["0", "DATA_TYPE_FLOAT32"]),
    "type unknown": (changed(input=typed(5, 1, 3)), "input.data_type", ["5", "DATA_TYPE_FLOAT64"]),
    "output type unknown": (changed(output=typed(9, 2, 2)), "output.data_type", ["9"]),
    "types differ": (changed(output=typed(4, 2, 2)), "output.data_type", ["float64", "float32"]),
    "rank 0": (tensors(float32()), "input.sizes", ["0 axes", "1 to 8"]),
    "rank 9": (tensors(float32(*[1] * 9)), "input.sizes", ["9 axes", "1 to 8"]),
    "rank absurd": (tensors(float32(*[1] * 1_000)), "input.sizes", ["1000 axes"]),
    "result of rank 0": (changed(output=float32()), "output.sizes", ["0 axes"]),
    "ranks differ": (changed(output=float32(2, 2, 1)), "output.sizes", ["3 axes", "2"]),
    "input of negative size": (tensors(float32(-3, 1)), "input.sizes[0]", ["-3", "at least 0"]),
    "result of size 0": (changed(output=float32(0, 2)), "output.sizes[0]", ["0", "at least 1"]),
    "result of negative size": (
        changed(output=float32(2, -INT64)),
        "output.sizes[1]",
        [f"-{INT64}"],
    ),
    "input past int64": (tensors(float32(2**32, 2**32)), "input.sizes", ["2**63"]),
    "input just past int64": (tensors(float32(2**61)), "input.sizes", ["2**63"]),
    "input far past int64": (tensors(float32(*[INT64] * 8)), "input.sizes", ["2**63"]),
    "result past int64": (changed(output=float32(INT64, INT64)), "output.sizes", ["2**63"]),
    "broadcast input past int64": (
        tensors(float32(INT64, INT64, strides=(0, 0)), float32(1, 1)),
        "input.sizes",
        ["2**63"],
    ),
    "strides too few": (strided(2, 2, source=(1,)), "input.strides", ["1", "2"]),
    "strides absurd": (strided(2, source=(1,) * 1_000), "input.strides", ["1000"]),
    "stride negative": (strided(2, 2, source=(2, -1)), "input.strides[1]", ["-1"]),
    "strides equal": (strided(2, 2, source=(1, 1)), "input.strides[1]", ["1", "2"]),
    "strides overlap": (strided(2, 4, source=(3, 1)), "input.strides[0]", ["3", "4"]),
    "strides interleave": (strided(2, 3, source=(1, 1)), "input.strides[1]", ["1"]),
    "result overlaps": (strided(2, 4, result=(2, 1)), "output.strides[0]", ["2", "4"]),
    "result broadcast": (strided(2, 4, result=(0, 1)), "output.strides[0]", ["0", "overlap"]),
    "stride past int64": (strided(2, 2, source=(2**61, 1)), "input.strides", ["2**63"]),
    "strides past int64 in all": (
        strided(INT64, INT64, source=(INT64, 1)),
        "input.sizes",
        ["2**63"],
    ),
    "result stride past int64": (strided(2, 2, result=(INT64, 1)), "output.strides", ["2**63"]),
    "name too long": (changed(request_id="x" * 129), "request_id", ["129", "128"]),
    "name not ASCII": (changed(request_id="f\u00fcr"), "request_id", ["ASCII"]),
    "name absurd": (changed(request_id="x" * 10_000), "request_id", ["10000"]),
    "name with a zero": (changed(request_id="a\0b"), "request_id", ["printable"]),
    "name of two lines": (changed(request_id="a\nb"), "request_id", ["printable"]),
}


@pytest.mark.parametrize("how", raw_calls.BOTH_WAYS)
@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_bad_field_is_named_with_what_came_and_what_would_do(client, name, how):
    request, path, words = BAD_FIELDS[name]
    answer = client.ask(request, how)
    in_band = how == "EvaluateStream"
    refusal = refused(answer, "INVALID_FIELD", field=path, in_band=in_band)
    for word in words:
        assert word in refusal.message
    assert answer.opened is None


def test_evaluate_takes_just_the_bytes_that_the_descriptor_promises(client):
    for count in (0, 1, 11, 13, 1_000_000):
        refusal = refused(client.evaluate(changed(data=bytes(count))), "INVALID_DATA", field="data")
        assert str(count) in refusal.message
        assert "12" in refusal.message


def test_a_number_of_open_that_is_out_of_range_is_named(client):
    for name, number in (
        *(("resume_from", number) for number in (-1, 16, 17, INT64, -(2**63))),
        *(("max_chunk_bytes", number) for number in (-1, -(2**63), 1, 4095)),
        *(("stop_before", number) for number in (-1, 17, INT64, -(2**63))),
    ):
        message = opening(published_request(), **{name: number})
        refusal = raw_calls.ended(client.stream([message]), "INVALID_FIELD", field=f"open.{name}")
        assert str(number) in refusal.message


GRADIENT = np.array([[4, 5, 6]], "f4")
NEAREST = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))
ROW = np.ones((1, 4, 1), "f4")


def backward(**attributes):
    return ops.InterpolateBackward(mode="linear", **attributes)


TOO_FEW = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1,))
# Operator, input, shape of the result, the path of the field at fault, words of the message. The
# SDK sees the first ones for what they are, the server the others.
BAD = {
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
    "input.sizes": "array.shape",
    "input.data_type": "array.dtype",
    "output": "output_shape",
    "output.sizes": "output_shape",
}


@pytest.fixture(scope="module", params=["unary", "stream", "async unary", "async stream"])
def sdk(server, request):
    face = AWAITED if "async" in request.param else Client
    threshold = 1 if "stream" in request.param else 1 << 20
    with face(server.address, stream_threshold_bytes=threshold) as client:
        yield client


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_an_invalid_request_that_names_the_field(sdk, name):
    operator, array, shape, path, words = BAD[name]
    with pytest.raises(InvalidRequestError) as caught:
        sdk.evaluate(operator, array, output_shape=shape)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.reason, caught.value.field) == ("INVALID_FIELD", path)
    told = str(caught.value)
    assert told.startswith(WRITTEN.get(path.partition("[")[0]) or path.split(".")[-1])
    assert not re.search(r"\b(input|output|operator)\.", told), "a path of the wire"
    for word in words:
        assert word in told


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_attribute_that_is_no_scale_never_leaves_the_caller(number):
    with pytest.raises(InvalidRequestError) as error:
        ops.DmlResampleGrad(interpolation_mode="linear", scales=(1, number))
    assert error.value.field == "operator.dml_resample_grad.scales[1]"


def field(number, content):
    """Encode a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


GOOD = published_request().SerializeToString()
OPEN = opening(published_request()).SerializeToString()
# Messages that hold the bytes of a header, by method and place.
WAYS = {
    "Evaluate": lambda head: (head,),
    "ListOperators": lambda head: (head,),
    "GetServerInfo": lambda head: (head,),
    "EvaluateStream": lambda head: (head,),
    "EvaluateStream, after open": lambda head: (OPEN, head),
    "EvaluateStream, open": lambda head: (field(1, head),),
    "EvaluateStream, chunk": lambda head: (field(2, head),),
    "EvaluateStream, open after open": lambda head: (OPEN, field(1, head)),
    "EvaluateStream, chunk after open": lambda head: (OPEN, field(2, head)),
    "EvaluateMany": lambda head: (field(1, GOOD), field(1, head)),
}


def sent(client, way, head):
    """Send a header in one of the ways; return how it was refused, and whether in-band too."""
    method, messages = way.partition(",")[0], WAYS[way](head)
    if method != "EvaluateMany":
        return raw_calls.send_bytes(client, method, *messages), method == "EvaluateStream"
    with raw_calls.ManyCall.of_bytes(client, *messages) as call:
        return call.refusal(), True


GARBAGE = {
    "a tag without a value": b"\x0a",
    "a length beyond the end": b"\x12\xff\xff\xff\x7f",
    "a group that does not end": b"\x0b",
    "no UTF-8": b"\x0a\x02\xc3\x28",
    "noise": bytes(range(255, 0, -1)),
}


# Messages without a text field do not decode an unknown field as text.
@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, id=f"{way}, {name}")
        for way in WAYS
        for name in GARBAGE
        if name != "no UTF-8" or not re.search("List|Info|chunk", way)
    ],
)
def test_bytes_that_are_no_message_are_refused_as_invalid_data(client, way, name):
    refusal, in_band = sent(client, way, GARBAGE[name])
    told = refused(refusal, "INVALID_DATA", field="message", in_band=in_band).message
    assert in_band or f"{len(GARBAGE[name])} bytes" in told


LARGE = 1 << 20
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("filling", FILLINGS.values(), ids=list(FILLINGS))
def test_a_header_that_is_too_long_is_refused(client, way, filling):
    prefix = field(1, b"name") if way == "EvaluateMany" else b""
    refusal, in_band = sent(client, way, prefix + filling + field(6, b""))
    limit = {"limit": "max_header_bytes", "allowed": MAX_HEADER_BYTES}
    checked = refused(refusal, "INVALID_DATA", field="message", in_band=in_band, **limit)
    assert f"at most {MAX_HEADER_BYTES} (max_header_bytes) are read" in checked.message


def resample(source, result):
    """Ask for a linear forward of a broadcast input: 4 bytes, whatever its sizes."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(*source, strides=(0,) * len(source)))
    request.output.CopyFrom(float32(*result))
    return request


# The setting, a request that it is too small for, and the reason.
EXCEEDED = {
    "rank": ("max_rank", 2, resample((2, 1, 1), (2, 2, 2)), "LIMIT_EXCEEDED"),
    "input elements": ("max_elements", 99, resample((10, 10), (2, 2)), "LIMIT_EXCEEDED"),
    "output elements": ("max_elements", 99, resample((2, 2), (10, 10)), "LIMIT_EXCEEDED"),
    "intermediate elements": ("max_elements", 199, resample((2, 100), (100, 1)), "LIMIT_EXCEEDED"),
    "table entries": ("max_table_entries", 50, resample((8,), (100,)), "TABLE_TOO_LARGE"),
    "float32 axis": ("max_float32_axis", 99, resample((10,), (100,)), "LIMIT_EXCEEDED"),
    "work": ("max_work", 999, resample((10, 10), (20, 20)), "LIMIT_EXCEEDED"),
    "memory": ("max_request_memory_bytes", 5000, resample((10, 10), (90, 90)), "LIMIT_EXCEEDED"),
}


@pytest.mark.parametrize("name", EXCEEDED)
def test_what_exceeds_a_limit_is_refused_by_its_name_and_let_in_by_default(name, client):
    setting, allowed, request, reason = EXCEEDED[name]
    with served(**{setting: allowed}) as (server, limited):
        for how in raw_calls.BOTH_WAYS:
            answer = limited.ask(request, how)
            in_band = how == "EvaluateStream"
            refusal = refused(answer, reason, in_band=in_band, limit=setting, allowed=allowed)
            assert f"GRADWIRE_{setting.upper()}" in refusal.message
            assert f" {allowed}" in refusal.message
            assert client.ask(request, how).refusal is None
        limited.check_alive()
        wait_idle(server)


def test_a_layout_that_cannot_be_held_whole_is_refused_before_any_data():
    request = identity_request(4096, 4096)
    with served(max_request_memory_bytes=32 << 20) as (_server, client):
        # In one axis order it streams, however large it is.
        call = client.start([opening(request)])
        assert next(call).WhichOneof("message") == "opened"
        call.cancel()
        request.output.strides[:] = (1, 4096)
        answer = client.stream([opening(request)])
        raw_calls.ended(answer, "LAYOUT_NOT_STREAMABLE", limit="max_request_memory_bytes")
        client.check_alive()


def test_what_exceeds_max_unary_bytes_on_either_side_is_sent_to_the_stream():
    with served(max_unary_bytes=400) as (_server, client):
        for name, source, result in (("input", 101, 1), ("output", 1, 101)):
            request = identity_request(source, data=bytes(4 * source))
            request.output.sizes[:] = [result]
            refusal = refused(client.evaluate(request), "USE_STREAM", limit="max_unary_bytes")
            assert refusal.message.startswith(f"{name} is 404 bytes; Evaluate takes 400")
            assert client.stream(raw_calls.as_stream(request)).refusal is None
        assert client.evaluate(identity_request(100, data=bytes(400))).refusal is None
        # It comes before data are missed.
        refused(client.evaluate(identity_request(101)), "USE_STREAM")


def test_a_message_beyond_max_message_bytes_is_not_read():
    with served(max_message_bytes=5 << 20) as (server, client):
        refusal = client.evaluate(identity_request(1 << 20, data=bytes(6 << 20))).refusal
        assert refusal is not None
        assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Told apart from overload by the lack of these.
        assert not refusal.info.reason
        assert refusal.retry_after_s is None
        answer = client.stream(
            [opening(identity_request(4 << 20)), raw_calls.chunk(0, bytes(6 << 20))]
        )
        assert answer.refusal is not None
        wait_idle(server)
        client.check_alive()


# Errors of the Open Inference Protocol; metrics count them as unknown operators.
INFERENCE = {errors.UnknownModelError, errors.UnsupportedCallError}
SAMPLES = [
    errors.InvalidFieldError("operator.dml_resample_grad.scales[2]", "is nan; finite is needed"),
    errors.InvalidDataError("data", "3 bytes; the input's descriptor takes 4"),
    errors.UnknownFieldError("field 7 is not known", field_number=7),
    errors.UnknownOperatorError("operator 9 is not known", operator=9),
    errors.MessageTooLargeError("too large", limit="max_unary_bytes", allowed=5),
    errors.RequestLimitError("too many", limit="max_elements", allowed=5),
    errors.TableTooLargeError("too long", limit="max_table_entries", allowed=5),
    errors.LayoutNotStreamableError("held", limit="max_request_memory_bytes", allowed=5),
    errors.ServerFullError("full", retry_after_s=0.25),
    errors.StartingError("not yet", retry_after_s=0.25),
    errors.DeviceLostError("lost", retry_after_s=0.25),
    errors.UnauthenticatedError("none"),
    errors.MissingScopeError("not this"),
    errors.UnknownSegmentError("gone"),
    errors.ChecksumError("changed"),
    errors.StalledError("still"),
    errors.DrainingError("going"),
    errors.DigestMismatchError("other"),
]


def test_every_error_and_every_reason_has_the_other_with_the_status_of_the_schema():
    """The comment of each reason in error_reason.proto names its status."""
    classes = {each for _, each in inspect.getmembers(errors, inspect.isclass)}
    abstract = {errors.EvaluationError, errors.RetryLaterError}
    assert {type(error) for error in SAMPLES} == classes - abstract - INFERENCE
    others = [kind("secret") for kind in (MemoryError, TimeoutError, RuntimeError)]
    known = [failure(each) for each in (*SAMPLES, *others)]
    # Words of the interpreter are replaced by own ones.
    assert "secret" not in str([(each.message, each.facts) for each in known])
    subclass = type("NoMemoryError", (MemoryError,), {})
    assert failure(subclass("secret")) == failure(MemoryError())
    assert len({each.reason_name for each in known}) == len(known)
    assert {each.reason_name: each.code for each in known} == raw_calls.CODES
    given = {each.in_band().reason for each in known}
    assert given == set(v1.ErrorReason.values()) - {v1.ErrorReason.ERROR_REASON_UNSPECIFIED}


@pytest.mark.parametrize(
    "text",
    ["x" * 10**6, "\U0001f600" * 10**5, "%" * 10**5, "\x00\n\r\t" * 10**5, "\\" * 10**5],
    ids=["long", "wide", "percent", "control", "backslash"],
)
def test_message_and_details_fit_in_a_trailer_whatever_a_caller_wrote(text):
    facts = dict.fromkeys(("one", "two", "three"), text)
    error = errors.InvalidFieldError("operator.interpolate.sizes", f"is {text}", **facts)
    failed = failure(error).within(request_id="x" * 128, traceparent="t" * 55)
    assert failed.message.isascii()
    assert failed.message.isprintable()
    assert len(urllib.parse.quote(failed.message, safe=" \"'\\")) + len(failed.details()) < 4096


class _Faulty(NumpyCpu):
    """A backend whose faults tell of the machine, for all but rows of eight elements."""

    def apply(self, plan, x, y):
        if plan.input_shape[-1] != 8:
            raise RuntimeError(f"no room in {__file__}, user root, token s3cret")
        super().apply(plan, x, y)


def test_a_fault_tells_its_request_id_and_nothing_of_the_machine_and_harms_no_other_request(caplog):
    with served_many(backend=_Faulty()) as (_server, client, many):
        said = []
        for name in (f"{raw_calls.SERVICE}/Evaluate", f"{raw_calls.SERVICE}/EvaluateStream"):
            replies, refusal = call(client.channel, name, raw_calls.EVERY[name])
            said += [refused(refusal, "INTERNAL"), replies]
        many.send(
            raw_calls.named(raw_calls.rows(5), "bad"), raw_calls.named(raw_calls.rows(4), "good")
        )
        answers = many.answers()
    assert answers["good"].WhichOneof("outcome") == "result"
    error = answers["bad"].error
    assert error.reason == v1.ErrorReason.ERROR_REASON_INTERNAL
    for word in ("s3cret", "root", ".py", "Traceback", "RuntimeError"):
        assert word not in str([*said, error])
    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    names = [vars(each)["facts"]["request_id"] for each in logged]
    assert names == [raw_calls.REQUEST_ID, raw_calls.REQUEST_ID, "bad"]
    assert caplog.text.count("s3cret") >= 3


@pytest.mark.parametrize("how", raw_calls.BOTH_WAYS)
@pytest.mark.parametrize("name", ["dml_resample_grad", "dml_resample", "interpolate_backward"])
def test_an_absent_result_that_attributes_do_not_determine_is_asked_for(client, name, how):
    request = identity_request(1, 1, 2, data=bytes(8))
    getattr(request.operator, name).MergeFromString(b"\x08\x02")  # linear in DirectML
    request.ClearField("output")
    refused(client.ask(request, how), "INVALID_FIELD", field="output")


@pytest.mark.parametrize(
    ("shape", "limit"),
    [((1 << 18, 1 << 19), "max_elements"), (((1 << 23) + 1,), "max_float32_axis")],
    ids=["elements", "axis"],
)
def test_a_request_beyond_a_limit_names_it(sdk, shape, limit):
    huge = np.broadcast_to(np.float32(1), shape)
    with pytest.raises(LimitExceededError, match=str(huge.size)) as caught:
        sdk.evaluate(COPY, huge, output_shape=(1,) * len(shape))
    assert caught.value.limit == limit
    assert caught.value.request_id


def test_requests_among_many_whose_names_can_be_read_are_refused_alone(client):
    long = published_request()
    long.input.sizes.extend([1] * MAX_HEADER_BYTES)
    with raw_calls.ManyCall(client) as call:
        call.send(raw_calls.named(long, "long"))
        call.send(*(raw_calls.named(published_request(), name) for name in ("line\nbreak", "good")))
        answers = call.answers()
    assert answers["line\nbreak"].error.field_violations[0].field == "request_id"
    assert answers["good"].HasField("result")
    error = answers["long"].error
    assert error.metadata["limit"] == "max_header_bytes"
    assert error.field_violations[0].field == "message"


def test_metadata_are_read_up_to_the_limits_of_grpc(client):
    def sent(size):
        message = published_request().SerializeToString()
        method = f"{raw_calls.SERVICE}/Evaluate"
        return call(client.channel, method, (message,), ("name", "x" * size))[1]

    assert [sent(7 << 10) for _ in range(20)] == [None] * 20
    refusal = sent(16 << 10)
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "received metadata size exceeds hard limit" in refusal.message


def test_max_chunk_bytes_binds_both_sides():
    request = published_request()
    with served(max_chunk_bytes=5) as (_server, client):
        answer = client.stream([opening(request), *raw_calls.chunks(request.data, 5)])
        assert answer.opened is not None
        assert answer.opened.max_chunk_bytes == 5
        assert [length for _, length in answer.chunks] == [5, 5, 5, 1]
        answer = client.stream([opening(request), *raw_calls.chunks(request.data, 6)])
        raw_calls.ended(answer, "INVALID_DATA", field="chunk.data")


def test_the_limits_in_force_can_be_asked_for():
    names = [field.name for field in v1.Limits.DESCRIPTOR.fields]
    settings = {name: number for number, name in enumerate(names, 101)}
    del settings["stall_timeout"]
    settings |= {"max_rank": 7, "max_message_bytes": 1 << 20}
    with served(**settings, stall_timeout_s=12.5) as (_server, client):
        limits = client.stub.GetServerInfo(v1.GetServerInfoRequest()).limits
    assert {name: getattr(limits, name) for name in settings} == settings
    assert limits.stall_timeout.ToNanoseconds() == 12_500_000_000
