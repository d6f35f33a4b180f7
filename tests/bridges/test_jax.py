"""JAX arrays through a real server: gradients of any order, traced, compiled and batched."""

import inspect
from functools import partial

import numpy as np
import pytest

from gradwire import Client, InvalidRequestError, ops
from support.servers import serving

jax = pytest.importorskip("jax", reason="bridges to JAX where it is installed")
bridge = pytest.importorskip("gradwire.jax")
jnp = jax.numpy
pytest.importorskip("jax.test_util")

BILINEAR = ops.Interpolate(mode="bilinear", sizes=(7, 2), data_format="NCX")
SHAPE, RESULT = (1, 2, 3, 4), (1, 2, 7, 2)
# Without sizes, which their forwards need.
GRADIENTS = [
    ops.InterpolateBackward(mode="bilinear"),
    ops.OnnxResizeGrad(mode="cubic", axes=(2, 1)),
    ops.TfResizeGrad(kind="bilinear"),
    ops.JaxResizeGrad(method="cubic"),
    ops.OpenvinoInterpolateGrad(mode="cubic", axes=(1, 2)),
    ops.DmlResampleGrad(interpolation_mode="linear"),
]


@pytest.fixture(scope="module")
def client():
    with serving() as server, Client(server.address) as client:
        yield client


@pytest.fixture
def x():
    return jnp.asarray(np.random.default_rng(1).standard_normal(SHAPE, np.float32))


def test_first_and_second_gradients_are_evaluated(client, x):
    def square(x):
        return (bridge.evaluate(BILINEAR, x, RESULT, client=client) ** 2).sum() / 2

    there = client.evaluate(BILINEAR, x)
    back = ops.adjoint(BILINEAR)
    expected = client.evaluate(back, there, output_shape=SHAPE)
    assert np.array_equal(jax.grad(square)(x), expected)
    # The second derivative of a square is the adjoint after the operator, whatever x is.
    direction = jnp.ones(SHAPE)
    (second,) = jax.vjp(jax.grad(square), x)[1](direction)
    once = client.evaluate(BILINEAR, direction)
    assert np.array_equal(second, client.evaluate(back, once, output_shape=SHAPE))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_any_type_gives_the_bits_of_evaluate(client, x, name):
    given = x.astype(name)
    result = bridge.evaluate(BILINEAR, given, RESULT, client=client)
    assert result.dtype == given.dtype
    assert np.asarray(result).tobytes() == client.evaluate(BILINEAR, given).tobytes()


def test_a_compiled_batch_has_the_bits_of_each_by_itself(client, x):
    def square(x):
        return (bridge.evaluate(BILINEAR, x, RESULT, client=client) ** 2).sum()

    gradient = jax.grad(square)
    assert np.array_equal(jax.jit(gradient)(x), gradient(x))
    batch = jnp.stack([x * scale for scale in range(6)]).reshape(2, 3, *SHAPE)
    results = jax.jit(jax.vmap(jax.vmap(gradient)))(batch)
    each = [gradient(one) for one in batch.reshape(6, *SHAPE)]
    assert np.array_equal(results.reshape(6, *SHAPE), np.stack(each))


def test_what_fails_raises_its_error_or_is_named_in_that_of_jax(client, x):
    def evaluated(x, shape=(7, 2)):
        return bridge.evaluate(BILINEAR, x, shape, client=client)

    # Shapes are wrong as soon as a function is traced.
    for function in (evaluated, jax.jit(evaluated), jax.vmap(evaluated), jax.grad(evaluated)):
        with pytest.raises(InvalidRequestError, match=r"array\.shape: has [23] axes|output_shape"):
            function(jnp.ones((2, 3, 4)))
    other_sizes = partial(evaluated, shape=(1, 2, 7, 3))
    told = r"sizes\[1\]: is 2, but dst has 3"
    with pytest.raises(InvalidRequestError, match=told):
        other_sizes(x)
    with pytest.raises(InvalidRequestError, match=told):
        jax.vjp(other_sizes, x)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"InvalidRequestError: {told}"):
        jax.jit(other_sizes)(x).block_until_ready()


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3", "lanczos5"])
def test_resize_has_the_values_and_gradients_of_jax(client, method, antialias):
    noise = np.random.default_rng(2)
    for source, shape in (((2, 9, 7), (2, 5, 16)), ((30,), (13,)), ((3, 4), (3, 4))):
        image, weights = (
            jnp.asarray(noise.standard_normal(sizes, np.float32)) for sizes in (source, shape)
        )
        options = {"shape": shape, "method": method, "antialias": antialias}
        ours = partial(bridge.resize, **options, client=client)
        theirs = partial(jax.image.resize, **options)
        # The bound of docs/dialects/jax.md, for two axes of at most 16 such products each.
        far = 0 if method == "nearest" else 1e-4
        np.testing.assert_allclose(ours(image), theirs(image), rtol=0, atol=far)
        np.testing.assert_allclose(jax.jit(ours)(image), ours(image), rtol=0, atol=0)
        mine, jaxs = (jax.vjp(resize, image)[1](weights)[0] for resize in (ours, theirs))
        # Sums of nearest's gradient may be taken in another order.
        np.testing.assert_allclose(mine, jaxs, rtol=0, atol=far or 1e-6)


def test_derivatives_of_resize_are_those_of_a_linear_function(client):
    def curved(image):
        return bridge.resize(image, (7, 3), "cubic", client=client) ** 3

    image = jnp.asarray(np.random.default_rng(3).uniform(-1, 1, (4, 5)), np.float32)
    jax.test_util.check_grads(curved, (image,), order=2, modes=["rev"], eps=0.01, rtol=0.02)


def test_resize_is_batched(client):
    def resized(image):
        return bridge.resize(image, (2, 7), "lanczos3", client=client)

    batch = jnp.asarray(np.random.default_rng(4).standard_normal((5, 3, 4), np.float32))
    expected = np.stack([resized(one) for one in batch])
    assert np.array_equal(jax.vmap(resized)(batch), expected)
    assert np.array_equal(jax.jit(jax.vmap(resized, in_axes=2))(batch.transpose(1, 2, 0)), expected)


def test_resize_takes_what_jax_takes(client):
    image = jnp.arange(12).reshape(3, 4)
    names = list(inspect.signature(jax.image.resize).parameters)
    assert list(inspect.signature(bridge.resize).parameters)[: len(names)] == names
    linear = jax.image.ResizeMethod.LINEAR
    given = (image, (np.int64(3), 8), linear, False, jax.lax.Precision.DEFAULT)
    ours = bridge.resize(*given, client=client)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, jax.image.resize(*given), rtol=1e-6)
    for empty in (bridge.resize(image, (0, 8), "cubic"), jax.image.resize(image, (0, 8), "cubic")):
        assert (empty.shape, empty.dtype) == ((0, 8), jnp.float32)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (((3, 8), "area"), r"method: is 'area'; give 'nearest' or"),
        (((3, 8), "cubic-pytorch"), r"method: is 'cubic-pytorch'"),
        (((8,), "linear"), r"output_shape: has 1 axis, array\.shape has 2"),
        (((3, -8), "linear"), r"output_shape\[1\]: is -8; give an integer"),
        (((3, 8.5), "linear"), r"output_shape\[1\]: is 8\.5; give an integer"),
        (((3, 8), "linear", 2), r"antialias: is 2 \(int\); give True or False"),
        (((6, 4), "nearest"), r"image: is int32; nearest keeps the type"),
    ],
)
def test_a_wrong_argument_of_resize_is_named_at_once(given, told):
    image = jnp.ones((3, 4), jnp.int32)
    for function in (bridge.resize, jax.jit(bridge.resize, static_argnums=(1, 2, 3))):
        with pytest.raises(InvalidRequestError, match=told):
            function(image, *given)


@pytest.mark.parametrize("operator", GRADIENTS, ids=lambda operator: operator.name)
def test_gradients_by_themselves_have_gradients(client, operator):
    shape, result = (1, 4, 6, 1), (1, 2, 3, 1)
    weights = jnp.asarray(np.random.default_rng(5).standard_normal(result, np.float32))

    def loss(g):
        return (bridge.evaluate(operator, g, result, client=client) * weights).sum()

    (gradient,) = jax.jit(jax.vjp(loss, jnp.zeros(shape))[1])(1.0)
    forward = ops.adjoint(operator).for_output(shape)
    assert np.array_equal(gradient, client.evaluate(forward, weights, output_shape=shape))
