"""What raw callers are told of a bad request, callers of the SDK are told as exceptions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gradwire import (
    Client,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
    ops,
)
from support.clients import AWAITED
from support.servers import ServerThread

GRADIENT = np.array([[4, 5, 6]], "f4")
GRAD = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))
LINEAR = ops.DmlResample(interpolation_mode="linear")


pytestmark = pytest.mark.usefixtures("still_alive")


def backward(**attributes: Any) -> ops.Operator:
    return ops.InterpolateBackward(mode="linear", **attributes)


def caught(server: ServerThread, how: str, *call: Any, **options: Any) -> GradwireError:
    """Evaluate in this way and return the error."""
    face = AWAITED if "async" in how else Client
    threshold = 1 if "stream" in how else 1 << 20
    with (
        face(server.address, stream_threshold_bytes=threshold) as client,
        pytest.raises(GradwireError) as error,
    ):
        client.evaluate(*call, **options)
    return error.value


# Operator, input, shape of the result, the path of the field at fault, words of the message. The
# SDK sees the first ones for what they are, the server the others.
BAD: dict[str, tuple[ops.Operator, Any, Any, str, list[str]]] = {
    "rank 0": (GRAD, np.float32(1), (1,), "input.sizes", ["0 axes", "1 to 8"]),
    "rank 9": (GRAD, np.ones((1,) * 9, "f4"), (1,) * 9, "input.sizes", ["9 axes", "1 to 8"]),
    "size 0": (GRAD, np.ones((2, 0), "f4"), (2, 2), "input.sizes[1]", ["0"]),
    "integers": (GRAD, np.ones((1, 3), "i4"), (2, 2), "input.data_type", ["int32", "float32"]),
    "result of rank 0": (GRAD, GRADIENT, (), "output.sizes", ["0 axes"]),
    "result of rank 9": (GRAD, GRADIENT, (1,) * 9, "output.sizes", ["9 axes"]),
    "result of size 0": (GRAD, GRADIENT, (2, 0), "output.sizes[1]", ["0"]),
    "result of negative size": (GRAD, GRADIENT, (-2, 2), "output.sizes[0]", ["-2"]),
    "result past int64": (GRAD, GRADIENT, (2**63, 1), "output.sizes[0]", [str(2**63)]),
    "result of 2**63 bytes": (GRAD, GRADIENT, (2**61, 1), "output.sizes", ["2**63"]),
    "ranks differ": (GRAD, GRADIENT, (2, 2, 1), "output.sizes", ["3", "2"]),
    "scales too few": (
        ops.DmlResampleGrad(interpolation_mode="linear", scales=(1,)),
        GRADIENT,
        (2, 2),
        "operator.dml_resample_grad.scales",
        ["1", "2"],
    ),
    "offsets too many": (
        ops.DmlResample2(interpolation_mode="linear", output_pixel_offsets=(0, 0, 0)),
        GRADIENT,
        (2, 2),
        "operator.dml_resample2.output_pixel_offsets",
        ["3", "2"],
    ),
    "no result asked for": (GRAD, GRADIENT, None, "output", ["dml_resample_grad"]),
    "no room for an image": (backward(), GRADIENT, (2, 2), "input.sizes", ["2", "3"]),
    "size of another": (
        backward(sizes=(5,)),
        np.ones((1, 4, 1), "f4"),
        (1, 2, 1),
        "operator.interpolate_backward.sizes[0]",
        ["5", "4"],
    ),
    "scale of another": (
        backward(scales=(3,)),
        np.ones((1, 4, 1), "f4"),
        (1, 4, 1),
        "operator.interpolate_backward.scales[0]",
        ["3", "4"],
    ),
}
# What the caller writes for a path of the wire; an attribute is its last part.
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
    error = caught(server, how, LINEAR, huge, output_shape=(1,) * len(shape))
    assert isinstance(error, LimitExceededError)
    assert error.limit == limit
    assert str(huge.size) in str(error)
    assert error.request_id


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0, -1.0])
def test_an_attribute_that_is_no_scale_never_leaves_the_caller(number: float) -> None:
    with pytest.raises(InvalidRequestError) as error:
        ops.DmlResampleGrad(interpolation_mode="linear", scales=(1, number))
    assert error.value.field == "operator.dml_resample_grad.scales[1]"
