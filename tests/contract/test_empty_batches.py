"""An empty batch has an empty result, however it travels; an axis that is resized has elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import Client, InvalidRequestError, ops, v1
from gradwire_server import LocalClient
from support.clients import AWAITED
from support.command_line import run_here
from support.raw_calls import RawClient, float32
from support.servers import ServerThread, serving

TORCH = ops.TorchUpsampleBackward(mode="bilinear", align_corners=False, size=(8, 8))
FORWARD = ops.TorchInterpolate(mode="bicubic", align_corners=False, scale_factor=(2.0, 2.0))
ONEDNN = ops.InterpolateBackward(mode="bilinear", data_format="NXC")
DML = ops.DmlResampleGrad(interpolation_mode="linear")
Evaluate = Callable[..., NDArray[Any]]

CASES: dict[str, tuple[ops.Operator, tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]] = {
    "batch": (TORCH, (0, 3, 8, 8), (0, 3, 4, 4), (0, 3, 4, 4)),
    "channels": (TORCH, (2, 0, 8, 8), (2, 0, 4, 4), (2, 0, 4, 4)),
    "both": (TORCH, (0, 0, 8, 8), (0, 0, 4, 4), (0, 0, 4, 4)),
    "inferred": (FORWARD, (0, 3, 4, 4), None, (0, 3, 8, 8)),
    "channels last": (ONEDNN, (0, 8, 8, 3), (0, 4, 4, 3), (0, 4, 4, 3)),
    "copied": (DML, (0, 1, 8, 8), (0, 1, 8, 8), (0, 1, 8, 8)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving() as server:
        yield server


def one_of_many(client: Any) -> Evaluate:
    def evaluate(op: ops.Operator, array: object, **options: Any) -> NDArray[Any]:
        shape, out = options.get("output_shape"), options.get("out")
        (result,) = client.evaluate_many([(op, array, shape, out)])
        return result  # type: ignore[no-any-return]

    return evaluate


WAYS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "client": Client,
    "async": AWAITED,
    "local": lambda _: LocalClient("numpy_cpu"),
}


@pytest.fixture(params=["client", "client many", "async", "local", "local many"])
def evaluate(request: pytest.FixtureRequest, server: ServerThread) -> Iterator[Evaluate]:
    way, _, many = request.param.partition(" ")
    with WAYS[way](server.address) as client:
        yield one_of_many(client) if many else client.evaluate


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_empty_batch_has_an_empty_result(evaluate: Evaluate, name: str, dtype: Any) -> None:
    op, shape, output_shape, expected = CASES[name]
    for _ in range(2):  # the second one finds what is kept of the first
        result = evaluate(op, np.empty(shape, dtype), output_shape=output_shape)
        assert (result.shape, result.dtype) == (expected, dtype)
    out = np.empty(expected, dtype)
    assert evaluate(op, np.empty(shape, dtype, order="F"), out=out) is out


@pytest.mark.parametrize(
    ("op", "shape", "output_shape", "field"),
    [
        (TORCH, (1, 3, 0, 8), (1, 3, 4, 4), "input.sizes[2]"),
        (TORCH, (1, 3, 8, 8), (1, 3, 0, 4), "output.sizes[2]"),
        (TORCH, (0, 3, 8, 8), (1, 3, 4, 4), "input.sizes[0]"),
        (TORCH, (1, 3, 8, 8), (0, 3, 4, 4), "output.sizes[0]"),
        (FORWARD, (1, 3, 0, 4), None, "input.sizes[2]"),
        (FORWARD, (1, 3, 0, 4), (1, 3, 0, 8), "input.sizes[2]"),
        # It is checked in every other respect.
        (TORCH, (0, 3, 8), (0, 3, 4), "operator.torch_upsample_backward.mode"),
    ],
)
def test_an_axis_that_is_resized_has_elements_and_a_tensor_its_axes(
    evaluate: Evaluate,
    op: ops.Operator,
    shape: tuple[int, ...],
    output_shape: tuple[int, ...] | None,
    field: str,
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        evaluate(op, np.empty(shape, np.float32), output_shape=output_shape)
    assert caught.value.field == field
    assert "sizes" not in field or "at least 1 is needed" in str(caught.value)


@pytest.mark.parametrize("strides", [(), (192, 64, 8, 1), (0, 0, 0, 0)], ids=str)
def test_a_stock_client_gets_one_too(server: ServerThread, strides: tuple[int, ...]) -> None:
    operator = ops.to_message(TORCH)
    tensors: Any = {
        "input": float32(0, 3, 8, 8, strides=strides),
        "output": float32(0, 3, 4, 4),
    }
    with RawClient(server.address) as client:
        reply = client.stub.Evaluate(v1.EvaluateRequest(operator=operator, **tensors))
        assert (list(reply.output.sizes), reply.data) == ([0, 3, 4, 4], b"")
        opening = v1.EvaluateStreamRequest(open=v1.Open(operator=operator, **tensors))
        (opened,) = client.stub.EvaluateStream(iter([opening]))
        assert list(opened.opened.output.sizes) == [0, 3, 4, 4]
        assert (opened.opened.read_from_byte, opened.opened.read_before_byte) == (0, 0)


def test_the_command_line_writes_one(server: ServerThread, tmp_path: Path) -> None:
    given, made = tmp_path / "given.npy", tmp_path / "made.npy"
    np.save(given, np.empty((0, 3, 8, 8), np.float32))
    done = run_here(
        "evaluate", given, made, "--op", "torch_upsample_backward", "--attr", "mode=bilinear",
        "--attr", "size=8,8", "--attr", "align_corners=false", "--output-shape", "0,3,4,4",
        "--target", server.address,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert np.load(made).shape == (0, 3, 4, 4)
