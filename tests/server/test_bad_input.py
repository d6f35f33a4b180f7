"""A request that makes no sense is refused with the field at fault, and the server goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import grpc
import pytest

from gradwire import v1
from raw_calls import (
    PATIENCE_S,
    RawClient,
    as_stream,
    check_in_band,
    check_refusal,
    float32,
    identity_request,
    opening,
    published_request,
    read_all,
    refusal_of,
)
from serving import serving

Change = Callable[[v1.EvaluateRequest], None]

NAN, INF = math.nan, math.inf
INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with serving() as server, RawClient(server.address) as client:
        yield client


@pytest.fixture(autouse=True)
def still_alive(client: RawClient) -> Iterator[None]:
    yield
    client.check_alive()


def dml(**fields: object) -> Change:
    """Set attributes of dml_resample_grad in place of the published ones."""

    def change(request: v1.EvaluateRequest) -> None:
        attributes = request.operator.dml_resample_grad
        for name in fields:
            attributes.ClearField(name)
        attributes.MergeFrom(v1.DmlResample(**fields))  # type: ignore[arg-type]

    return change


def interpolate(**fields: object) -> Change:
    """Ask for interpolate_backward of a 1x1x4 tensor with these attributes."""

    def change(request: v1.EvaluateRequest) -> None:
        mode = {"mode": v1.Interpolate.MODE_LINEAR}
        attributes = v1.Interpolate(**{**mode, **fields})  # type: ignore[arg-type]
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
    return lambda request: request.ClearField(name)  # type: ignore[arg-type]


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
    "scales absurd": (dml(scales=[1] * 100_000), GRAD + "scales", ["more than 8"]),
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
    "rank absurd": (tensors(float32(*[1] * 100_000)), "input.sizes", ["100000 axes"]),
    "result of rank 0": (result(float32()), "output.sizes", ["0 axes"]),
    "ranks differ": (result(float32(2, 2, 1)), "output.sizes", ["3 axes", "2"]),
    "input of size 0": (tensors(float32(1, 0)), "input.sizes[1]", ["0", "at least 1"]),
    "input of negative size": (tensors(float32(-3, 1)), "input.sizes[0]", ["-3", "at least 1"]),
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
    "strides absurd": (tensors(float32(2, strides=(1,) * 100_000)), "input.strides", ["100000"]),
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
    "name absurd": (rename("x" * 3_000_000), "request_id", ["3000000"]),
    "name not ASCII": (rename("f\u00fcr"), "request_id", ["ASCII"]),
    "name of two lines": (rename("a\nb"), "request_id", ["printable"]),
    "name with a zero": (rename("a\0b"), "request_id", ["printable"]),
}


@pytest.mark.parametrize("how", ["Evaluate", "EvaluateStream"])
@pytest.mark.parametrize(("change", "path", "words"), BAD_FIELDS.values(), ids=list(BAD_FIELDS))
def test_a_bad_field_is_named_with_what_came_and_what_would_do(
    client: RawClient, change: Change, path: str, words: list[str], how: str
) -> None:
    request = published_request()
    change(request)
    answer = client.ask(request, how)
    refusal = check_refusal(
        answer.refusal, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field=path
    )
    for word in words:
        assert word in refusal.message
    if how == "EvaluateStream":
        check_in_band(refusal)
        assert answer.opened is None


@pytest.mark.parametrize("how", ["Evaluate", "EvaluateStream"])
@pytest.mark.parametrize("name", ["dml_resample_grad", "dml_resample", "interpolate_backward"])
def test_an_absent_result_that_attributes_do_not_determine_is_asked_for(
    client: RawClient, name: str, how: str
) -> None:
    request = identity_request(1, 1, 2, data=bytes(8))
    request.operator.Clear()
    getattr(request.operator, name).MergeFromString(b"\x08\x02")  # linear in DirectML
    request.ClearField("output")
    check_refusal(
        client.ask(request, how).refusal,
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        field="output",
    )


@pytest.mark.parametrize("count", [0, 1, 11, 13, 1_000_000])
def test_evaluate_takes_just_the_bytes_that_the_descriptor_promises(
    client: RawClient, count: int
) -> None:
    request = published_request()
    request.data = bytes(count)
    refusal = check_refusal(
        client.evaluate(request).refusal,
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="data",
    )
    assert str(count) in refusal.message
    assert "12" in refusal.message


OPEN_NUMBERS = {
    "resume_from": [-1, 16, 17, INT64, -(2**63)],
    "max_chunk_bytes": [-1, -(2**63)],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, each) for name in OPEN_NUMBERS for each in OPEN_NUMBERS[name]]
)
def test_a_number_of_open_that_is_out_of_range_is_named(
    client: RawClient, name: str, number: int
) -> None:
    message = opening(published_request(), **{name: number})
    refusal = check_refusal(
        client.stream([message]).refusal,
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        field=f"open.{name}",
    )
    assert str(number) in refusal.message
    check_in_band(refusal)


@pytest.mark.parametrize("digest", ["0" * 64, "x" * 1_000_000, "\U0001f600" * 100_000, "a\r\n\0b"])
def test_a_digest_of_another_evaluation_is_aborted_in_a_short_message(
    client: RawClient, digest: str
) -> None:
    message = opening(published_request(), evaluation_digest=digest)
    refusal = check_refusal(
        client.stream([message]).refusal, grpc.StatusCode.ABORTED, "EVALUATION_CHANGED"
    )
    check_in_band(refusal)


GARBAGE = {
    "a tag without a value": b"\x0a",
    "a length beyond the end": b"\x12\xff\xff\xff\x7f",
    "a group that does not end": b"\x0b",
    "no UTF-8": b"\x0a\x02\xc3\x28",
    "noise": bytes(range(255, 0, -1)),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_message_are_refused_as_invalid_data(
    client: RawClient, garbage: bytes
) -> None:
    call = client.channel.unary_unary("/gradwire.v1.GradientService/Evaluate")
    with pytest.raises(grpc.RpcError) as caught:
        call(garbage, timeout=PATIENCE_S)
    refusal = check_refusal(
        refusal_of(caught.value),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="message",
    )
    assert f"{len(garbage)} bytes" in refusal.message


@pytest.mark.parametrize("before", [0, 1], ids=["first", "after open"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_message_of_a_stream_are_refused_as_invalid_data(
    client: RawClient, garbage: bytes, before: int
) -> None:
    messages = [opening(published_request()).SerializeToString()][:before]
    call = client.channel.stream_stream(
        "/gradwire.v1.GradientService/EvaluateStream",
        response_deserializer=v1.EvaluateStreamResponse.FromString,
    )
    # Field 1 is open, a message: what is inside it need not be one either.
    wrapped = b"\x0a" + bytes([len(garbage)]) + garbage if len(garbage) < 128 else garbage
    answer = read_all(call(iter([*messages, wrapped]), timeout=PATIENCE_S))
    refusal = check_refusal(
        answer.refusal, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_DATA", field="message"
    )
    check_in_band(refusal)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "x" * 4000,
    ],
)
def test_a_malformed_traceparent_starts_a_new_trace(client: RawClient, traceparent: str) -> None:
    answer = client.evaluate(published_request(), traceparent=traceparent)
    assert answer.refusal is None
    version, trace, span, flags = answer.trailers["traceparent"].split("-")
    assert (version, flags) == ("00", "00")
    assert int(trace, 16)
    assert int(span, 16)


def test_a_trace_and_a_name_return_in_every_reply(client: RawClient) -> None:
    for answer in (
        client.evaluate(published_request()),
        client.stream(as_stream(published_request())),
    ):
        assert answer.trailers["gradwire-request-id"] == published_request().request_id
        assert answer.trailers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


def test_an_unnamed_request_is_given_a_name(client: RawClient) -> None:
    request = published_request()
    request.request_id = ""
    names = {client.evaluate(request).trailers["gradwire-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)


@pytest.mark.parametrize("name", [" ", " a ", "~" * 128, "%25 \"'\\"])
def test_any_printable_name_returns_as_it_is(client: RawClient, name: str) -> None:
    request = published_request()
    request.request_id = name
    answer = client.evaluate(request)
    assert answer.refusal is None
    assert answer.trailers["gradwire-request-id"] == name
