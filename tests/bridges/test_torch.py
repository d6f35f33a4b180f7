"""PyTorch tensors through a real server: gradients of any order, compiled or not, to the bit."""

import gc

import numpy as np
import pytest

from gradwire import Client, InvalidRequestError, ops, tensors
from support.servers import serving

torch = pytest.importorskip("torch", reason="bridges to PyTorch where it is installed")
bridge = pytest.importorskip("gradwire.torch")

CASES = {
    "nearest": {"scale_factor": 2},
    "nearest-exact, one scale for both axes": {"scale_factor": 2.3, "mode": "nearest-exact"},
    "bilinear": {"size": (5, 3), "mode": "bilinear"},
    "bilinear, shrinking smoothly": {"scale_factor": 0.5, "mode": "bilinear", "antialias": True},
    "bicubic at scales": {"scale_factor": (1.5, 0.6), "mode": "bicubic"},
    "bicubic, corners": {"size": 5, "mode": "bicubic", "align_corners": True},
    "area": {"size": (2, 3), "mode": "area"},
}
FORWARDS = ["remote", "local"]
# Most of them without sizes, which most of their forwards need.
GRADIENTS = [
    ops.DmlResampleGrad(interpolation_mode="linear"),
    ops.DmlResampleGrad1(interpolation_mode="nearest_neighbor", rounding_direction="increasing"),
    ops.InterpolateBackward(mode="bilinear", data_format="NCX"),
    ops.InterpolateBackward(mode="nearest", scales=(2, 2), data_format="NCX"),
    ops.TorchUpsampleBackward(mode="bicubic", follow="forward_adjoint"),
    ops.TorchUpsampleBackward(
        mode="bilinear", recompute_scale_factor=True, antialias=True, follow="forward_adjoint"
    ),
    ops.OnnxResizeGrad(mode="cubic"),
    ops.OnnxResizeGrad(mode="linear", axes=(-1, 2), antialias=True, arithmetic="float32"),
    ops.TfResizeGrad(kind="bicubic", half_pixel_centers=True),
    ops.JaxResizeGrad(method="lanczos3"),
    ops.OpenvinoInterpolateGrad(mode="cubic", axes=(2, 3)),
    ops.OpenvinoInterpolateGrad(
        mode="linear", shape_calculation_mode="scales", scales=(2, 2), axes=(2, 3)
    ),
]


@pytest.fixture(scope="module")
def client():
    with serving() as server, Client(server.address) as client:
        yield client


@pytest.fixture
def x():
    return torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("arguments", CASES.values(), ids=CASES)
def test_first_and_second_gradients_are_those_of_the_function(client, x, arguments, forward):
    def resample(x):
        return bridge.interpolate(x, **arguments, forward=forward, client=client)

    torch.testing.assert_close(
        resample(x), torch.nn.functional.interpolate(x, **arguments), rtol=1e-14, atol=1e-14
    )
    assert torch.autograd.gradcheck(resample, x)
    assert torch.autograd.gradgradcheck(resample, x)
    # A batch of none has results and gradients of none.
    none = torch.ones(0, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    result = resample(none)
    assert result.shape == torch.nn.functional.interpolate(none, **arguments).shape
    (gradient,) = torch.autograd.grad(result.square().sum(), none, create_graph=True)
    assert gradient.shape == none.shape
    assert torch.autograd.grad(gradient.sum(), none)[0].shape == none.shape


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_compiled_function_has_the_bits_of_one_that_is_not(client, x, forward):
    linear = ops.DmlResample(interpolation_mode="linear")

    def loss(x):
        doubled = bridge.interpolate(
            x * 2, scale_factor=2, mode="bilinear", forward=forward, client=client
        )
        return bridge.evaluate(linear, doubled, (1, 2, 4, 4), client=client)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = loss(x)
    given = torch.randn_like(expected)
    assert torch.equal(compiled(x), expected)
    (gradient,) = torch.autograd.grad(compiled(x), x, given)
    assert torch.equal(gradient, torch.autograd.grad(loss(x), x, given)[0])


def test_pytorch_finds_nothing_wrong_with_the_operation(client, x):
    linear = ops.Interpolate(mode="linear", data_format="NCX", sizes=(3, 9))
    texts = bridge.as_text(linear), bridge.as_text(ops.adjoint(linear))
    arguments = (x, *texts, [1, 2, 3, 9], bridge.CLIENTS.number(client, Client))
    torch.library.opcheck(torch.ops.gradwire.evaluate.default, arguments)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_any_type_and_layout_gives_the_bits_of_evaluate(client, dtype):
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    whole = torch.randn(2, 9, 3, 8).to(getattr(torch, dtype))
    for given in (whole, whole.permute(0, 2, 3, 1), whole[:, ::2], whole[:1].expand(3, 9, 3, 8)):
        before = given.clone()
        shape = (*given.shape[:2], 2, 3)
        result = bridge.evaluate(operator, given, shape, client=client)
        assert result.dtype == given.dtype
        expected = client.evaluate(operator, given, output_shape=shape)
        assert tensors.to_array(result).tobytes() == expected.tobytes()
        # The result is the caller's own.
        result += 1
        assert torch.equal(given, before)
    for sizes in ({"size": np.int64(4)}, {"scale_factor": np.array([2.0, 0.5])}):
        plain = {name: value.tolist() for name, value in sizes.items()}
        own = torch.nn.functional.interpolate(whole.float(), **plain)
        assert torch.equal(bridge.interpolate(whole.float(), **sizes, client=client), own)


def test_the_gradient_may_be_the_one_of_pytorch_itself(client):
    """Where PyTorch's backward is no adjoint of its forward: docs/dialects/torch.md."""
    x = torch.randn(1, 1, 9, dtype=torch.float64, requires_grad=True)
    arguments = {"scale_factor": 1.7, "mode": "nearest-exact"}
    results = {
        follow: bridge.interpolate(x, **arguments, follow=follow, client=client)
        for follow in ("backward_op", "forward_adjoint")
    }
    g = torch.arange(1.0, 16.0, dtype=torch.float64).reshape(1, 1, 15)
    (own,) = torch.autograd.grad(torch.nn.functional.interpolate(x, **arguments), x, g)
    (theirs,) = torch.autograd.grad(results["backward_op"], x, g)
    assert torch.equal(own, theirs)


def test_a_client_that_is_gone_is_named_as_the_cause(x):
    with serving() as server:
        client = Client(server.address)
        result = bridge.interpolate(x, scale_factor=2, client=client)
        client.close()
        del client
        gc.collect()
        with pytest.raises(RuntimeError, match="keep a reference to it"):
            result.sum().backward()


def test_the_second_gradient_is_without_the_constant_that_a_forward_adds(client):
    def resample(x, value=7.0, *roi):
        outside = ops.OnnxResize(
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
            roi=roi or (0.5, 1.5),
            sizes=(4,),
            extrapolation_value=value,
        )
        return bridge.evaluate(outside, x, (4,), client=client)

    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert resample(x)[-1] == 7
    assert torch.autograd.gradcheck(resample, x)
    assert torch.autograd.gradgradcheck(resample, x)
    # The sign of a zero among the attributes is kept.
    for zero in (0.0, -0.0):
        beyond = resample(x, zero, 2.0, 3.0)
        assert torch.equal(torch.signbit(beyond), torch.full((4,), bool(np.signbit(zero))))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_is_refused(client, x):
    def resample(x):
        return bridge.interpolate(x, scale_factor=2, client=client)

    with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        torch.func.jvp(resample, (x,), (torch.ones_like(x),))


@pytest.mark.parametrize("operator", GRADIENTS, ids=repr)
def test_gradients_by_themselves_have_gradients_of_any_order(client, operator):
    # TensorFlow's are NHWC.
    channels_last = isinstance(operator, ops.TfResizeGrad)
    shape, result = ((1, 4, 6, 2), (1, 2, 3, 2)) if channels_last else ((1, 2, 4, 6), (1, 2, 2, 3))

    def gradient(g):
        return bridge.evaluate(operator, g, result, client=client)

    g = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gradient, g)
    assert torch.autograd.gradgradcheck(gradient, g)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"size": 8, "mode": "nearest", "align_corners": True}, r"align_corners: "),
        ({}, r"size: is None"),
        ({"input": torch.ones(1, 2, 3, 4).int(), "size": 8}, "is int32"),
        ({"input": torch.ones(1, 2, 0, 4), "size": 8}, r"array\.shape\[2\]: is 0"),
        ({"size": 10**12}, r"output_shape: is \[1, 2, 10{12}, .* bytes of torch\.float64"),
        ({"size": 2**64}, r"size: is 18446744073709551616"),
        ({"scale_factor": 1e300}, r"scale_factor\[0\]: is 1e\+300, which scales 3 elements"),
        ({"scale_factor": (1, 0.2)}, r"scale_factor\[1\]: is 0\.2, which scales 4 elements"),
        ({"size": (4, 4, 4)}, r"output_shape: has 5 axes, array\.shape has 4"),
    ],
)
def test_what_cannot_be_is_told_in_the_words_of_the_sdk(client, x, asked, told):
    with pytest.raises(InvalidRequestError, match=told):
        bridge.interpolate(**{"input": x, **asked}, client=client)
