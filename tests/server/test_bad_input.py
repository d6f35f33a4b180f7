"""A request that makes no sense is refused with the field at fault, and the server goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from gradwire import v1
from support.raw_calls import (
    BOTH_WAYS,
    RawClient,
    ended,
    float32,
    identity_request,
    opening,
    published_request,
    refused,
)
from support.refusals import check_in_band

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
