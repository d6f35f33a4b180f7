"""Every example has the same bits however called, and an adjoint; empty batches have results."""

import dataclasses

import numpy as np
import pytest

from gradwire import Client, InvalidRequestError, ops, v1
from gradwire.ops._base import is_default
from gradwire_server import LocalClient
from support.clients import AWAITED
from support.command_line import run_here
from support.oracles.dialect_oracles import DTYPES, evaluate, lowered
from support.oracles.dialect_tables import EXAMPLES
from support.raw_calls import RawClient, float32
from support.servers import same_bytes, serving

every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
every_type = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


@pytest.fixture(scope="module")
def target():
    with serving() as server:
        yield server.address


@pytest.fixture(scope="module")
def clients(target):
    with Client(target) as client, LocalClient() as local, AWAITED(target) as awaited:
        yield [client, local, awaited]


def test_every_operator_has_an_example():
    assert {example.operator.name for example in EXAMPLES.values()} == set(ops.OPERATORS)


@every_example
def test_an_example_has_the_result_that_stands_beside_it(example):
    result = evaluate(example.operator, example.given(), example.result)
    if example.expected is not None:
        np.testing.assert_array_equal(result, np.array(example.expected, np.float32))


@every_type
@every_example
def test_both_clients_and_no_socket_give_the_same_bits(clients, example, dtype):
    given = example.given(dtype)
    expected = evaluate(example.operator, given, example.result)
    for client in clients:
        result = client.evaluate(example.operator, given, output_shape=example.result)
        same_bytes(result, expected)
    (many,) = clients[0].evaluate_many([(example.operator, given, example.result)])
    same_bytes(many, expected)
    if not example.operator.output_required:
        same_bytes(clients[0].evaluate(example.operator, given), expected)


def assignments(operator):
    """Return an operator's attributes as the command line takes them."""
    options = []
    for field in dataclasses.fields(operator):
        value = getattr(operator, field.name)
        if not is_default(field, value):
            text = str(value).strip("()").replace(" ", "").removesuffix(",")
            options += ["--attr", f"{field.name}={text}"]
    return options


@every_example
def test_the_command_line_gives_the_same_bits(tmp_path, target, example):
    given = example.given()
    expected = evaluate(example.operator, given, example.result)
    same_bytes(by_command(tmp_path, target, example.operator, given, example.result), expected)


def by_command(folder, target, operator, given, shape):
    np.save(folder / "given.npy", given)
    done = run_here(
        *("evaluate", folder / "given.npy", folder / "result.npy", "--target", target),
        *("--op", operator.name, *assignments(operator)),
        *("--output-shape", ",".join(map(str, shape))),
    )
    assert done.code == 0, done.stderr
    return np.load(folder / "result.npy")


def bands(operator, source, result):
    plan = lowered(operator, source, result, np.float32)
    return {one.axis: one.map.dense() for one in plan.passes}


FORWARDS = {name: one for name, one in EXAMPLES.items() if not one.operator.gradient}


@pytest.mark.parametrize("example", FORWARDS.values(), ids=list(FORWARDS))
def test_the_tables_of_an_operator_and_its_adjoint_are_transposed(example):
    forward, source, result = example.operator, example.source, example.result
    gradient = ops.adjoint(forward)
    assert gradient.name == forward.counterpart
    there, back = bands(forward, source, result), bands(gradient, result, source)
    again = bands(ops.adjoint(gradient), source, result)
    assert there.keys() == back.keys() == again.keys()
    for axis in there:
        np.testing.assert_array_equal(there[axis], back[axis].T)
        np.testing.assert_array_equal(there[axis], again[axis])


def without_sizes(operator):
    """Return a gradient that leaves its forward's sizes to the shapes."""
    fields = {field.name for field in dataclasses.fields(operator)}
    return dataclasses.replace(operator, **dict.fromkeys(fields & {"size", "sizes", "shape"}, ()))


GRADIENTS = {
    name: one
    for name, one in EXAMPLES.items()
    if one.operator.gradient and getattr(one.operator, "follow", "") != "backward_op"
}


@pytest.mark.parametrize("example", GRADIENTS.values(), ids=list(GRADIENTS))
def test_the_forward_of_a_gradient_without_sizes_is_told_them_by_a_shape(example):
    gradient, source, result = without_sizes(example.operator), example.source, example.result
    forward = ops.adjoint(gradient).for_output(source)
    assert forward.for_output((1,) * len(source)) == forward
    back, there = bands(gradient, source, result), bands(forward, result, source)
    assert there.keys() == back.keys()
    for axis in there:
        np.testing.assert_array_equal(there[axis], back[axis].T)


def test_swapped_offsets_are_the_forwards_in_the_forward():
    gradient = ops.DmlResampleGrad(
        interpolation_mode="linear", input_pixel_offsets=(0.25,), offset_convention="swapped"
    )
    assert ops.adjoint(gradient) == ops.DmlResample(
        interpolation_mode="linear", output_pixel_offsets=(0.25,)
    )


TORCH = ops.TorchUpsampleBackward(mode="bilinear", align_corners=False, size=(8, 8))
FORWARD = ops.TorchInterpolate(mode="bicubic", align_corners=False, scale_factor=(2.0, 2.0))
ONEDNN = ops.InterpolateBackward(mode="bilinear", data_format="NXC")
DML = ops.DmlResampleGrad(interpolation_mode="linear")
# Operator, shapes of input and output as asked for, shape of the result.
EMPTY = {
    "batch": (TORCH, (0, 3, 8, 8), (0, 3, 4, 4), (0, 3, 4, 4)),
    "channels": (TORCH, (2, 0, 8, 8), (2, 0, 4, 4), (2, 0, 4, 4)),
    "both": (TORCH, (0, 0, 8, 8), (0, 0, 4, 4), (0, 0, 4, 4)),
    "inferred": (FORWARD, (0, 3, 4, 4), None, (0, 3, 8, 8)),
    "channels last": (ONEDNN, (0, 8, 8, 3), (0, 4, 4, 3), (0, 4, 4, 3)),
    "copied": (DML, (0, 1, 8, 8), (0, 1, 8, 8), (0, 1, 8, 8)),
}


@pytest.fixture(params=["client", "client many", "local", "local many", "async"])
def ask(request, clients):
    """Give evaluate() of a client, or evaluate_many() of one item."""
    way, _, many = request.param.partition(" ")
    client = clients[["client", "local", "async"].index(way)]

    def ask(op, array, shape=None, out=None):
        if many:
            return next(client.evaluate_many([(op, array, shape, out)]))
        return client.evaluate(op, array, output_shape=shape, out=out)

    return ask


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_empty_batch_has_an_empty_result(ask, name, dtype):
    op, shape, output_shape, expected = EMPTY[name]
    for _ in range(2):  # the second one finds what is kept of the first
        result = ask(op, np.empty(shape, dtype), output_shape)
        assert (result.shape, result.dtype) == (expected, dtype)
    out = np.empty(expected, dtype)
    assert ask(op, np.empty(shape, dtype, order="F"), out=out) is out


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
    ask, op, shape, output_shape, field
):
    with pytest.raises(InvalidRequestError) as caught:
        ask(op, np.empty(shape, np.float32), output_shape)
    assert caught.value.field == field
    assert "sizes" not in field or "at least 1 is needed" in str(caught.value)


def test_the_command_line_and_a_stock_client_get_an_empty_result_too(target, tmp_path):
    given = np.empty((0, 3, 8, 8), np.float32)
    assert by_command(tmp_path, target, TORCH, given, (0, 3, 4, 4)).shape == (0, 3, 4, 4)
    tensors = {"operator": ops.to_message(TORCH), "output": float32(0, 3, 4, 4)}
    with RawClient(target) as client:
        for strides in ((), (192, 64, 8, 1), (0, 0, 0, 0)):
            tensors["input"] = float32(0, 3, 8, 8, strides=strides)
            reply = client.stub.Evaluate(v1.EvaluateRequest(**tensors))
            assert (list(reply.output.sizes), reply.data) == ([0, 3, 4, 4], b"")
            opening = v1.EvaluateStreamRequest(open=v1.Open(**tensors))
            (answer,) = client.stub.EvaluateStream(iter([opening]))
            assert list(answer.opened.output.sizes) == [0, 3, 4, 4]
            assert (answer.opened.read_from_byte, answer.opened.read_before_byte) == (0, 0)
