"""Streams, parts and LocalClient have the bits and errors of Evaluate."""

import inspect
import math
import threading
from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradwire
from gradwire import Client, GradwireError, InvalidRequestError, Item, ops, v1
from gradwire_server import LocalClient
from gradwire_server.engine import Limits
from support import raw_calls
from support.examples import examples
from support.raw_calls import PATIENCE_S, chunks, identity_request, opening, published_request
from support.servers import served

TYPES = {
    v1.DataType.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    v1.DataType.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    v1.DataType.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    v1.DataType.DATA_TYPE_FLOAT64: np.dtype(np.float64),
}
WHOLE = 2 << 20
UP = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
# The most bytes of a chunk of a server with slabs of this size.
SLABS = {1: 1, 60: 7, 1000: 99, WHOLE: WHOLE}


@pytest.fixture(scope="module")
def clients():
    """Connect to a server for each slab size."""
    with ExitStack() as stack:
        yield {
            slab: stack.enter_context(served(slab_bytes=slab, max_chunk_bytes=most))[1]
            for slab, most in SLABS.items()
        }


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sliced(clients, slab, request, send):
    """Evaluate by stream, in chunks of this size, or what the server takes."""
    size = min(send, SLABS[slab])
    return clients[slab].stream([opening(request), *chunks(request.data, size)])


def resumed(clients, slab, request, send, **fields):
    """Open a stream with these fields, and send what the server wants."""
    heard = threading.Event()
    wanted = []

    def messages():
        yield opening(request, **fields)
        if heard.wait(PATIENCE_S) and wanted:
            first, last = wanted[0]
            yield from chunks(request.data[:last], min(send, SLABS[slab]), start=first)

    def received():
        for message in call:
            if message.WhichOneof("message") == "opened":
                wanted.append((message.opened.read_from_byte, message.opened.read_before_byte))
            heard.set()
            yield message

    call = clients[slab].start(messages())
    answer = raw_calls.read_all(call, received())
    heard.set()
    return answer


def opened(answer):
    assert answer.refusal is None
    assert answer.opened is not None
    return answer.opened


def strides(draw, sizes, order):
    """Packed strides of axes in this order, slowest first, at times with a gap."""
    steps = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        steps[axis] = step
        step *= sizes[axis]
        step += draw(st.integers(0, 1)) * draw(st.integers(0, 3))
    return steps


@st.composite
def requests(draw):
    """Make a small resampling of any layout and type, with broadcast axes at times."""
    rank = draw(st.integers(1, 4))
    source, result = ([draw(st.integers(1, 6)) for _ in range(rank)] for _ in range(2))
    order = draw(st.permutations(range(rank)))
    other = order if draw(st.booleans()) else draw(st.permutations(range(rank)))
    steps = [step if draw(st.integers(0, 4)) else 0 for step in strides(draw, source, order)]
    number = draw(st.sampled_from(list(TYPES)))
    carried = math.prod(size for size, step in zip(source, steps, strict=True) if step)
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).standard_normal(carried).astype(TYPES[number])
    name = draw(st.sampled_from(["dml_resample_grad", "dml_resample"]))
    mode = draw(st.sampled_from([1, 2]))
    operator = {name: v1.DmlResample(interpolation_mode=mode)}
    packed = strides(draw, result, other)
    return v1.EvaluateRequest(
        operator=v1.Operator(**operator),
        input=v1.TensorDescriptor(data_type=number, sizes=source, strides=steps),
        output=v1.TensorDescriptor(data_type=number, sizes=result, strides=packed),
        data=values.tobytes(),
    )


@examples(100)
@given(data=st.data())
def test_a_stream_gives_the_bits_of_evaluate_however_it_is_cut(clients, data):
    request = data.draw(requests())
    whole = clients[WHOLE].evaluate(request)
    assert whole.refusal is None
    sizes = st.integers(1, 64)
    slab = data.draw(st.sampled_from(list(SLABS)))
    assert clients[slab].evaluate(request).data == whole.data
    cut = sliced(clients, slab, request, data.draw(sizes))
    digest = opened(cut).evaluation_digest
    assert (cut.data, cut.output) == (whole.data, whole.output)
    start = data.draw(st.integers(0, len(whole.data) - 1))
    resume = {"resume_from": start, "evaluation_digest": digest}
    rest = resumed(clients, slab, request, data.draw(sizes), **resume)
    assert rest.refusal is None
    assert rest.data == whole.data[start:]
    assert rest.chunks[0][0] == start
    stop = data.draw(st.integers(start + 1, len(whole.data)))
    part = resumed(clients, slab, request, data.draw(sizes), resume_from=start, stop_before=stop)
    assert part.refusal is None
    assert part.data == whole.data[start:stop]


@pytest.mark.parametrize("slab", SLABS)
def test_a_fresh_stream_starts_at_byte_0_even_where_the_first_bytes_do_not_matter(clients, slab):
    # Nearest: the one result element reads the middle one of three.
    request = identity_request(3, data=np.array([7, 8, 9], "<f4").tobytes())
    mode = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR
    request.operator.dml_resample.interpolation_mode = mode
    request.output.sizes[:] = [1]
    answer = sliced(clients, slab, request, 5)
    assert opened(answer).read_from_byte == 0
    assert answer.data == request.data[4:8]


def test_equal_evaluations_have_equal_digests_on_all_servers_and_others_are_not_resumed(clients):
    answers = [sliced(clients, slab, published_request(), 5) for slab in SLABS]
    (digest,) = {opened(answer).evaluation_digest for answer in answers}
    other = identity_request(4, data=bytes(16))
    resume = {"resume_from": 4, "evaluation_digest": digest}
    raw_calls.ended(resumed(clients, 1000, other, 5, **resume), "EVALUATION_CHANGED")


def test_small_calls_of_one_length_that_take_turns_have_the_bits_of_streams(client):
    numbers = np.random.default_rng(0)
    for number in range(60):
        request = published_request()
        scale = (1.5, 1.51, 1.52, 1.53, 1.54, 1.55)[number * 7 % 11 % 6]
        request.operator.dml_resample_grad.scales[1] = scale
        request.data = numbers.normal(size=3).astype("<f4").tobytes()
        answer = client.evaluate(request)
        assert answer.refusal is None
        assert answer.data == client.stream(raw_calls.as_stream(request)).data


def limited(threads=1, **limits):
    return LocalClient(threads=threads, limits=Limits(**limits))


def test_a_layout_too_large_to_hold_is_gathered_in_the_results_order_and_progress_is_told():
    array = normal(1, 64, 64, 64)
    out = np.empty((1, 32, 32, 64), np.float32).transpose(0, 3, 1, 2)
    told = []
    with limited(max_request_memory_bytes=600_000, slab_bytes=1 << 12) as local:
        local.evaluate(UP, array, out=out, on_progress=lambda sent, got: told.append((sent, got)))
    assert told == sorted(told)
    assert told[-1] == (array.nbytes, out.nbytes)
    with LocalClient() as local:
        np.testing.assert_array_equal(local.evaluate(UP, array, output_shape=out.shape), out)


ITEMS = [
    Item(UP, normal(1, 2, 2 * size, 2 * size, seed=seed), (1, 2, size, size))
    for seed, size in enumerate((1, 3, 8, 300, 8))
]


def test_results_of_many_are_those_of_evaluate_and_items_are_taken_when_asked_for():
    with LocalClient() as client:
        wanted = [client.evaluate(i.op, i.array, output_shape=i.output_shape) for i in ITEMS]
        taken = iter(ITEMS)
        with client.evaluate_many(taken) as results:
            first = next(results)
        assert list(results) == []
        every = [first, *client.evaluate_many(taken)]
        pairs = list(client.evaluate_many(ITEMS, ordered=False))
    assert [index for index, _ in pairs] == list(range(len(ITEMS)))
    for each in (every, [result for _, result in pairs]):
        for result, expected in zip(each, wanted, strict=True):
            np.testing.assert_array_equal(result, expected)


def test_an_error_is_raised_at_its_item_and_the_others_go_on():
    first, second, *_ = ITEMS
    bad = [first, (UP, first.array, (1, 1)), first.array, second]
    with LocalClient() as client:
        results = client.evaluate_many(bad)
        next(results)
        with pytest.raises(InvalidRequestError, match="output") as caught:
            next(results)
        assert (results.index, caught.value.__notes__) == (1, ["item 1 of evaluate_many"])
        with pytest.raises(TypeError, match="an item is a ndarray"):
            next(results)
        assert next(results).shape == second.output_shape
        assert list(results) == []


OPERATORS = (
    UP,
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.InterpolateBackward(mode="bilinear", coordinate_transformation_mode="align_corners"),
    ops.Interpolate(mode="linear", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(0.0,) * 4),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(-0.0,) * 4),
)


# Shapes that an array can have, and others, some of which equal them.
RESULTS = [
    *((1, 2, 2, 3), (2, 2, 3, 3), (1, 2, 8, 9), (2, 2)),
    *((True, 2, 2, 3), (1, 2, 2.0, 3), (1, 2, 0, 3), (1, 2, 2, 3, 1), (1, 3, 2, 3), None),
]
SOUND = 4


def outcome(client, operator, source, shape, out):
    """Evaluate and tell all that comes of it."""
    if out is not None and out.flags.writeable:
        out[...] = 77
    try:
        result = client.evaluate(operator, source, output_shape=shape, out=out)
    except (GradwireError, TypeError) as error:
        field = getattr(error, "field", None)
        return type(error), field, str(error).partition(" (request ")[0]
    assert out is None or result is out
    return result.dtype, result.shape, result.strides, result.tobytes()


@st.composite
def layouts(draw, shape, dtype):
    """Draw an array of a shape: permuted, with gaps, backward, either byte order."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    seed = np.random.default_rng(draw(st.integers(0, 1000)))
    wide = [shape[axis] * abs(steps[axis]) for axis in order]
    if dtype.kind == "f" and draw(st.integers(0, 5)) == 0:
        dtype = dtype.newbyteorder(">")
    whole = seed.normal(size=wide).astype(dtype).transpose(np.argsort(order))
    return whole[tuple(slice(None, None, step) for step in steps)]


@st.composite
def calls(draw):
    """Draw from so few shapes and layouts that many calls are alike."""
    dtype = draw(st.sampled_from([*TYPES.values(), *TYPES.values(), np.dtype(np.int32)]))
    source_shape = draw(st.sampled_from([(1, 2, 4, 6), (2, 2, 6, 6)]))
    number = draw(st.integers(0, len(RESULTS) - 1))
    result_shape = RESULTS[number]
    source = draw(layouts(source_shape, dtype))
    if draw(st.integers(0, 4)) == 0:
        source = np.broadcast_to(source[:, :, :1, :1], source_shape)
    out = None
    if number < SOUND and draw(st.booleans()):
        other = draw(st.sampled_from([dtype, dtype, dtype, np.dtype(np.float32)]))
        out = draw(layouts(result_shape, other))
        out.flags.writeable = draw(st.integers(0, 5)) > 0
    return draw(st.sampled_from(OPERATORS)), source, result_shape, out


@pytest.fixture(scope="module")
def remote(server):
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module", params=[1, 2])
def experienced(request):
    """Clients that have seen other calls before, by the size of their slabs."""
    with ExitStack() as stack:
        yield {
            slab: stack.enter_context(limited(request.param, slab_bytes=slab))
            for slab in (1 << 7, 1 << 20)
        }


@examples(300)
@given(call=calls(), slab=st.sampled_from([1 << 7, 1 << 20]))
def test_a_local_client_answers_as_the_service_does_whether_it_knows_the_call_or_not(
    remote, experienced, call, slab
):
    with LocalClient(threads=1) as new:
        expected = outcome(new, *call)
    for client in (remote, experienced[slab], experienced[slab]):
        assert outcome(client, *call) == expected


@pytest.mark.parametrize("slab", [1 << 7, 1 << 20])
@pytest.mark.parametrize(
    "part", [np.s_[:, :, 2:6, 1:5], np.s_[:, :, ::2, 1::2], np.s_[:, :, 3::-1, -2:1:-1]]
)
def test_only_the_elements_of_out_are_written(slab, part):
    array = normal(1, 1, 8, 8)
    memory = np.full((1, 1, 8, 9), 7.5, np.float32)
    others = np.ones(memory.shape, np.bool_)
    others[part] = False
    out = memory[part][:, :, :, :4]
    with limited(slab_bytes=slab) as client:
        expected = client.evaluate(UP, array, output_shape=(1, 1, 4, 4))
        for _ in range(2):
            out[...] = 0
            assert client.evaluate(UP, array, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert (memory[others] == 7.5).all()


def test_memory_that_became_unfit_for_a_result_is_refused():
    both = np.ones((1, 1, 12, 8), np.float32)
    out = np.empty((1, 1, 4, 8), np.float32)[..., :4]
    with LocalClient() as client:
        client.evaluate(UP, both[:, :, :8], out=out)
        with pytest.raises(GradwireError, match="shares memory"):
            client.evaluate(UP, both[:, :, :8], out=both[:, :, 6:10, :4])
        out.flags.writeable = False
        with pytest.raises(GradwireError, match="read-only"):
            client.evaluate(UP, both[:, :, :8], out=out)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_written_to_out_after_a_deadline(threads):
    x = np.ones((1, 4, 512, 512), np.float32)
    outs = np.zeros((20, 1, 4, 256, 256), np.float32)
    left = []
    with LocalClient("numpy_cpu", threads, limits=Limits(slab_bytes=1 << 20)) as client:
        for out in outs:
            with pytest.raises(gradwire.DeadlineExceededError):
                client.evaluate(UP, x, out=out, timeout_s=1e-9)
            left.append(out.copy())
    np.testing.assert_array_equal(outs, left)
    assert not np.all(left)


def test_evaluate_many_takes_and_refuses_what_a_client_does():
    local, client = (
        inspect.signature(kind.evaluate_many).parameters for kind in (LocalClient, Client)
    )
    assert local == client
    for most in (0, 1.5, True):
        with LocalClient() as one, pytest.raises(InvalidRequestError, match="max_in_flight: is"):
            one.evaluate_many([], max_in_flight=most)
