"""evaluate() gives the right bits whatever the array, the result's place and the way it travels."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import Message

from gradwire import Client, health, ops, v1
from gradwire.errors import UnavailableError
from support.clients import BILINEAR, COPY, LARGE, LAYOUTS, ONCE, copied, halved
from support.oracles.oracles import same_bits
from support.servers import ServerThread, serving

RANDOM = np.random.default_rng(0)
DIFF_DST = RANDOM.normal(size=(2, 3, 64, 48)).astype(np.float32)
SHAPE = (2, 3, 32, 24)


@pytest.fixture(scope="module", params=["unary", "stream"])
def client(request, server):
    """Each test that asks for it runs twice: by Evaluate, and by EvaluateStream in odd chunks."""
    threshold = 1 << 20 if request.param == "unary" else 0
    with Client(server.address, stream_threshold_bytes=threshold, chunk_bytes=4099) as client:
        yield client


@pytest.fixture(scope="module")
def expected(plain):
    return halved(plain, DIFF_DST)


def broadcast(*axes):
    return np.broadcast_to(DIFF_DST.mean(axes, keepdims=True), DIFF_DST.shape)


ARRAYS = {
    **{name: layout(DIFF_DST) for name, layout in LAYOUTS.items()},
    **{str(np.dtype(t)): DIFF_DST.astype(t) for t in ("f2", "f8", ml_dtypes.bfloat16)},
    **{f"broadcast {axes}": broadcast(*axes) for axes in ((0,), (3,), (1, 2), (0, 1, 2, 3))},
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bits_do_not_depend_on_where_elements_lie(client, plain, name):
    array, sent = ARRAYS[name], []
    result = halved(client, array, on_progress=lambda sent_bytes, _: sent.append(sent_bytes))
    packed = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
    expected = halved(plain, packed)
    same_bits(result, expected)
    # Some libraries compare types by identity.
    assert {id(each.dtype) for each in (result, expected)} == {id(np.dtype(array.dtype.type))}
    # Of a broadcast axis one element travels.
    assert sent[-1] == array[tuple(slice(None if s else 1) for s in array.strides)].nbytes
    if name == "channels last":
        assert result.transpose(0, 2, 3, 1).flags.c_contiguous


PLACES = {
    "plain": lambda _: np.full(SHAPE, np.nan, np.float32),
    "every other element": lambda _: np.full((2, 3, 32, 48), np.nan, np.float32)[..., ::2],
    "column-major": lambda _: np.full(SHAPE, np.nan, np.float32, order="F"),
    "backward": lambda _: np.full(SHAPE, np.nan, np.float32)[:, :, ::-1],
    "big-endian": lambda _: np.full(SHAPE, np.nan, ">f4"),
    "memmap": lambda folder: np.memmap(folder / "out", np.float32, "w+", shape=SHAPE),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_out_takes_the_result_whatever_its_strides(client, expected, place, tmp_path):
    DIFF_DST.tofile(tmp_path / "source")
    source = np.memmap(tmp_path / "source", np.float32, "r", shape=DIFF_DST.shape)
    out = place(tmp_path)
    assert client.evaluate(BILINEAR, source, out=out) is out
    np.testing.assert_array_equal(out, expected)
    if isinstance(out, np.memmap):
        out.flush()
        assert (tmp_path / "out").read_bytes() == expected.tobytes()


@pytest.mark.parametrize("side", [1200, 2400], ids=["USE_STREAM", "over grpc's own limit"])
def test_what_one_message_cannot_hold_is_streamed(address, plain, side):
    array = np.arange(side * side, dtype=np.float32).reshape(side, side)
    with Client(address, stream_threshold_bytes=1 << 40) as client:
        np.testing.assert_array_equal(copied(client, array), array)
    # The result alone.
    enlarge = ops.Interpolate(mode="nearest", scales=(side / 2, side / 2), data_format="NCX")
    small = np.array([[[[1, 2], [3, 4]]]], np.float32)
    large = small.repeat(side // 2, axis=2).repeat(side // 2, axis=3)
    np.testing.assert_array_equal(plain.evaluate(enlarge, small), large)


@pytest.mark.parametrize(
    "source",
    [
        LAYOUTS["channels last"](RANDOM.normal(size=(2, 3, 256, 256)).astype(np.float32)),
        np.broadcast_to(RANDOM.normal(size=(3, 256, 256)).astype(np.float32), (2, 3, 256, 256)),
    ],
    ids=["channels last", "broadcast"],
)
def test_an_input_that_cannot_be_streamed_in_its_order_is_reordered(source):
    out = np.empty(source.shape, np.float32)
    with (
        serving(max_request_memory_bytes=600_000, slab_bytes=1 << 14) as tight,
        Client(tight.address, retry=ONCE) as client,
    ):
        client.evaluate(COPY, source, out=out)
        np.testing.assert_array_equal(out, source)


def test_progress_grows_and_ends_with_the_end(relay, face):
    reports, threads = [], set()

    def report(*moved):
        reports.append(moved)
        threads.add(threading.current_thread().name)
        relay.let_go()

    with face(relay.address, chunk_bytes=5000) as client:
        relay.hold(after=1 << 20)
        copied(client, LARGE, on_progress=report)
        assert len(reports) > 1
        assert reports[-1] == (LARGE.nbytes, LARGE.nbytes)
        for before, after in pairwise(reports):
            assert before[0] <= after[0]
            assert before[1] <= after[1]
        assert threads == {threading.current_thread().name if face is Client else "driver"}
        reports.clear()
        halved(client, DIFF_DST, on_progress=report)
        assert reports == [(DIFF_DST.nbytes, DIFF_DST.nbytes // 4)]


@pytest.mark.parametrize("threshold", [0, 1 << 16, 1 << 40], ids=["stream", "both", "unary"])
def test_calls_at_once_share_a_client(address, face, expected, threshold):
    large = RANDOM.normal(size=(512, 512)).astype(np.float32)
    options = {"stream_threshold_bytes": threshold}
    with face(address, **options) as client, ThreadPoolExecutor(8) as pool:
        calls = [(pool.submit(halved, client, DIFF_DST), expected) for _ in range(40)]
        calls += [(pool.submit(copied, client, large), large) for _ in range(10)]
        for call, result in calls:
            np.testing.assert_array_equal(call.result(), result)


def test_a_call_that_succeeds_gives_back_to_the_budget_of_retries(client):
    budget = vars(client)["_options"].budget
    while budget.allows_retry:
        budget.fail()
    halved(client, DIFF_DST)
    assert budget.allows_retry


def test_a_server_tells_of_itself_by_the_names_of_the_schema(plain, faced):
    info, operators = faced.server_info(), faced.operators()
    assert (info, operators) == (plain.server_info(), plain.operators())
    assert [each.name for each in operators] == list(ops.OPERATORS) == list(info.operators)
    values = [
        (info, v1.GetServerInfoResponse),
        (info.limits, v1.Limits),
        (operators[0], v1.OperatorInfo),
        (operators[0].attributes[0], v1.AttributeInfo),
    ]
    for value, message in values:
        names = {field.name for field in message.DESCRIPTOR.fields}
        named = {field.name.replace("timeout_s", "timeout") for field in fields(value)}
        assert named == names
        assert not isinstance(value, Message)
        assert value == pickle.loads(pickle.dumps(value))  # noqa: S301 - dumped here
        with pytest.raises(FrozenInstanceError):
            setattr(value, fields(value)[0].name, None)
    # A Duration and an enum of the schema.
    assert info.limits.stall_timeout_s == 60
    assert operators[0].data_types == ("float32", "float16", "bfloat16", "float64")


def test_waiting_for_a_server_ends_as_soon_as_it_serves(nobody, face):
    with serving() as server:
        address = server.address
    later = ServerThread(address=address)
    with face(address) as client:
        budget = vars(getattr(client, "client", client))["_options"].budget
        with pytest.raises(UnavailableError):
            client.wait_ready(0.05)
        timer = threading.Timer(0.3, later.start)
        timer.start()
        assert not budget.reached
        client.wait_ready(30)
        assert budget.reached
        client.server_info()
        timer.join()
    assert health.health(address) == "SERVING"
    assert health.health(address, service="gradwire.v1.GradientService") == "SERVING"
    assert health.health(address, service="nobody.Service") == "SERVICE_UNKNOWN"
    later.stop()
    with face(nobody) as client, pytest.raises(UnavailableError, match=r"0\.3 s.*refused") as late:
        client.wait_ready(0.3)
    assert late.value.unreachable
    with pytest.raises(UnavailableError, match="refused"):
        health.health(nobody)
