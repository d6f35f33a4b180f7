"""evaluate() gives the right bits whatever the array, the result's place and the way it travels.

It reports where its time went, its progress, and its span in a trace. AsyncClient has a bounded
number of streams at once; further ones wait without a thread. Checksums are sent where plain text
leaves the machine, and only what matches them is taken.
"""

import asyncio
import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise

import grpc
import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from gradwire import AsyncClient, Client, Item, errors, health, ops, v1
from gradwire._transport.aio import AsyncClientChannels
from gradwire._wire.requests import Progress
from support.clients import (
    BILINEAR,
    COPY,
    LARGE,
    LAYOUTS,
    ONCE,
    PROMPT,
    SMALL,
    copied,
    either_size,
    half,
    halved,
)
from support.oracles.oracles import same_bits
from support.raw_calls import wait_until
from support.relay import relaying
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


def test_an_input_that_cannot_be_streamed_in_its_order_is_reordered():
    values = RANDOM.normal(size=(2, 3, 256, 256)).astype(np.float32)
    with (
        serving(max_request_memory_bytes=600_000, slab_bytes=1 << 14) as tight,
        Client(tight.address, retry=ONCE) as client,
    ):
        for source in (LAYOUTS["channels last"](values), np.broadcast_to(values[0], values.shape)):
            out = np.empty(source.shape, np.float32)
            client.evaluate(COPY, source, out=out)
            np.testing.assert_array_equal(out, source)


def test_progress_grows_and_ends_with_the_end(relay, face):
    reports = []

    def report(*moved):
        reports.append(moved)
        relay.let_go()

    with face(relay.address, chunk_bytes=5000) as client:
        relay.hold(after=1 << 20)
        copied(client, LARGE, on_progress=report)
        assert len(reports) > 1
        assert reports[-1] == (LARGE.nbytes, LARGE.nbytes)
        for before, after in pairwise(reports):
            assert before[0] <= after[0]
            assert before[1] <= after[1]
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
        names = {field.name.replace("timeout_s", "timeout") for field in fields(value)}
        assert names == {field.name for field in message.DESCRIPTOR.fields}
        assert not isinstance(value, Message)
    # A Duration and an enum of the schema.
    assert info.limits.stall_timeout_s == 60
    assert operators[0].data_types == ("float32", "float16", "bfloat16", "float64")


def test_waiting_for_a_server_ends_as_soon_as_it_serves(nobody, face):
    with serving() as server:
        address = server.address
    later = ServerThread(address=address)
    with face(address) as client:
        budget = vars(getattr(client, "client", client))["_options"].budget
        timer = threading.Timer(0.3, later.start)
        timer.start()
        assert not budget.reached
        client.wait_ready(30)
        assert budget.reached
        client.server_info()
        timer.join()
    assert health.health(address) == "SERVING"
    assert health.health(address, service="nobody.Service") == "SERVICE_UNKNOWN"
    later.stop()
    with (
        face(nobody) as client,
        pytest.raises(errors.UnavailableError, match=r"0\.3 s.*refused") as late,
    ):
        client.wait_ready(0.3)
    assert late.value.unreachable
    with pytest.raises(errors.UnavailableError, match="refused"):
        health.health(nobody)


@either_size
def test_a_call_tells_its_timing_and_tries_once(address, face, array):
    timings = []
    with face(address) as client:
        halved(client, array[np.newaxis, np.newaxis], on_timing=timings.append)
        with pytest.raises(errors.InvalidRequestError):
            client.evaluate(COPY, array, output_shape=(4, 0), on_timing=timings.append)
    (timing,) = timings
    told = [timing.receive_s, timing.queue_s, timing.compute_s, timing.send_s]
    assert all(phase is not None and 0 <= phase < timing.total_s for phase in told)
    assert timing.compute_s
    # Phases of a stream overlap.
    assert array is LARGE or sum(phase or 0 for phase in told) < timing.total_s
    assert timing.tries == 1
    options = {"connections": 1, "retry": PROMPT}
    with relaying(address, cuts=(100,) * 2) as relay, face(relay.address, **options) as client:
        copied(client, array, on_timing=timings.append)
    assert len(timings) == 2
    assert timings[1].tries >= 3


def test_an_exception_from_on_timing_reaches_the_caller(faced):
    with pytest.raises(ZeroDivisionError):
        copied(faced, SMALL, on_timing=lambda _: 1 // 0)


# Times that floating-point numbers add exactly.
PAUSES = st.sampled_from([0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4])
STEPS = st.lists(st.tuples(PAUSES, st.integers(0, 100), st.integers(0, 100)))


@given(STEPS)
def test_reports_grow_and_keep_a_tenth_of_a_second_apart(steps):
    now, reports = 0.0, []
    progress = Progress(lambda *moved: reports.append((now, *moved)), clock=lambda: now)
    for pause, sent, received in steps:
        now += pause
        progress.report(sent, received)
        progress.report(0, 0)
    # Nothing is reported before anything has moved.
    assert all(any(each[1:]) for each in reports)
    progress.finish(100, 100)
    *early, end = reports
    assert end[1:] == (100, 100)
    for before, after in pairwise(early):
        assert after[0] - before[0] >= 0.1
        assert before[1:] != after[1:]
    for before, after in pairwise(reports):
        assert before[1] <= after[1]
        assert before[2] <= after[2]


TRACED = """
import asyncio, json, sys
import numpy as np
import gradwire
gradwire.Client(sys.argv[1]).operators()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from gradwire import AsyncClient, Client, ops

target, url = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url + "/v1/traces")))
trace.set_tracer_provider(provider)
operator, small = ops.DmlResample(interpolation_mode="linear"), np.ones((1, 4), np.float32)

async def again():
    async with AsyncClient(target) as client:
        await client.evaluate(operator, small, output_shape=(1, 4))
        await client.server_info()
        async for _ in client.evaluate_many([(operator, small, (1, 4))] * 3):
            pass

with trace.get_tracer("a test").start_as_current_span("outer") as outer:
    for options in {"stream_threshold_bytes": 0}, {}:
        client = Client(target, **options)
        client.evaluate(operator, small, output_shape=(1, 4))
    with client:
        for _ in client.evaluate_many([(operator, small, (1, 4))] * 3):
            pass
        client.wait_ready()
        try:
            client.evaluate(operator, np.ones((1,) * 6, np.float32), output_shape=(1,) * 6)
        except Exception as error:
            failed = error.status
    asyncio.run(again())
told = outer.get_span_context()
print(json.dumps({"trace": f"{told.trace_id:032x}", "span": f"{told.span_id:016x}",
                  "failed": failed}))
"""


def test_every_call_is_a_span_below_the_callers_and_above_the_servers():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="it needs the extra otel")
    from support.collector import collecting  # noqa: PLC0415 - it needs the extra

    with collecting() as collector:
        with serving(otlp_endpoint=collector.url, max_rank=5) as server:
            # A process of its own has one tracer for good.
            command = [sys.executable, "-W", "error", "-c", TRACED, server.address, collector.url]
            told = subprocess.check_output(command, text=True, timeout=60)  # noqa: S603
        outer = json.loads(told)
        callers = [seen for seen in collector.spans if seen.span.kind == 3]
        unary, many = "Evaluate", "EvaluateMany"
        names = ["EvaluateStream", unary, many, unary, unary, "GetServerInfo", many]
        assert [seen.span.name.rpartition("/")[2] for seen in callers] == names
        for seen in callers:
            span = seen.span
            assert span.trace_id.hex() == outer["trace"]
            assert span.parent_span_id.hex() == outer["span"]
            assert seen.told["rpc.system"] == "grpc"
            assert f"127.0.0.1:{seen.told['server.port']}" == server.address
            (answered,) = collector.children(seen)
            assert (answered.span.kind, answered.span.name) == (2, span.name)
            code = "rpc.grpc.status_code"
            assert answered.told[code] == seen.told[code]
        assert outer["failed"] == callers[3].told["error.type"] != "OK"
        assert [seen.span.status.code for seen in callers] == [0, 0, 0, 2, 0, 0, 0]


STREAMED = np.ones((300, 300), np.float32)
# Streams at once, as the documentation of AsyncClient says.
BOUND = 64


def begun(client, **options):
    return asyncio.create_task(copied(client, STREAMED, **options))


def receivers():
    return sum(each.name == "gradwire-receiver" for each in threading.enumerate())


async def test_streams_beyond_the_bound_wait_without_a_thread(relay):
    async with AsyncClient(relay.address) as client:
        await begun(client)
        # From here on the network stands still.
        relay.hold()
        held = [begun(client) for _ in range(BOUND)]
        await asyncio.to_thread(wait_until, lambda: receivers() >= BOUND)
        threads = threading.active_count()
        waiting = [begun(client) for _ in range(3 * BOUND)]
        with pytest.raises(errors.DeadlineExceededError, match=r"within timeout_s, 0\.2 s"):
            await begun(client, timeout_s=0.2)
        assert receivers() == BOUND
        # Fewer where one of before has ended.
        assert threading.active_count() <= threads
        # No thread helps to cancel them.
        for task in waiting[:100]:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert all(task.cancelled() for task in waiting[:100])
        relay.let_go()
        for task in (*held, *waiting[100:]):
            np.testing.assert_array_equal(await task, STREAMED)
            assert receivers() <= BOUND


async def test_calls_of_more_parts_than_streams_take_turns_and_do_not_stall():
    channels = AsyncClientChannels(vars(Client("127.0.0.1:1", timeout_s=0.2))["_options"])
    asked = {"op": COPY, "array": STREAMED, "output_shape": None, "out": None}
    first, *others = (channels.blocking.evaluation(**asked, timeout_s=60) for _ in range(3))
    for each in (first, *others):
        vars(each.shares)["count"] = 1000

    async def take(evaluation):
        async with channels.admitted(evaluation):
            return evaluation.still_s

    async with channels.admitted(first):
        waiting = [asyncio.create_task(take(each)) for each in others]
        await asyncio.sleep(0.3)
    assert min(await asyncio.gather(*waiting)) > 0
    await channels.close()


async def test_cancelling_at_any_moment_of_the_start_and_closing_end_calls(relay):
    client = AsyncClient(relay.address)
    for turns in range(40):
        tasks = [begun(client) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    np.testing.assert_array_equal(await begun(client), STREAMED)
    relay.hold()
    tasks = [begun(client) for _ in range(BOUND + 9)]
    await asyncio.to_thread(wait_until, lambda: receivers() >= BOUND)
    await client.close()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, errors.CallCancelledError)


def test_checksums_are_on_where_plain_text_leaves_the_machine(monkeypatch):
    def are_on(target, **options):
        return vars(Client(target, **options))["_options"].sends_checksums

    there = ["10.0.0.1:1"], ["dns:///name:1"], ["127.0.0.1:1", "name:1"]
    for target in (["127.0.0.1:1"], ["localhost:1"], ["unix:/tmp/name"], *there):
        assert are_on(target) is (target in there)
        assert not are_on(target, credentials=grpc.ssl_channel_credentials())
        assert are_on(target, checksums=True)
        assert not are_on(target, checksums=False)
    monkeypatch.setenv("GRADWIRE_CHECKSUMS", "true")
    assert are_on("127.0.0.1:1")
    assert not are_on("127.0.0.1:1", checksums=False)


SENT = np.arange(2048, dtype=np.float32).reshape(1, 2, 32, 32)
SENT_IN_CHUNKS = np.arange(1 << 19, dtype=np.float32).reshape(1, 2, 512, 512)
MANY = [Item(BILINEAR, SENT + each, half(SENT)) for each in range(40)]
ASKS = {
    "small": lambda client: [halved(client, SENT)],
    "large": lambda client: [halved(client, SENT_IN_CHUNKS)],
    "many": lambda client: list(client.evaluate_many(MANY)),
}


# Whichever RPC it is that learns it.
@pytest.mark.parametrize("first", ASKS)
def test_results_are_the_same_also_of_a_server_that_knows_no_checksums(
    server, face, monkeypatch, caplog, first
):
    order = sorted(ASKS, key=lambda name: name != first)

    def results(client):
        return [each.tobytes() for name in order for each in ASKS[name](client)]

    with face(server.address, checksums=False) as without:
        expected = results(without)
    with face(server.address, checksums=True) as client:
        assert results(client) == expected
    with face(server.address, checksums=True) as client, caplog.at_level(logging.WARNING):
        client.wait_ready()
        monkeypatch.setattr("gradwire_server.rpc.codec.checksums.AVAILABLE", False)
        assert results(client) == results(client) == expected
    own = [each.message for each in caplog.records if each.name == "gradwire"]
    assert own == ["no checksums: a server does not know them"]


@pytest.mark.parametrize("up", [True, False], ids=["request", "result"])
@pytest.mark.parametrize("array", [SENT, SENT_IN_CHUNKS], ids=["small", "large"])
def test_a_changed_byte_of_data_is_an_error_that_is_retried(address, plain, array, up):
    # Powers of two survive the halving: the mark is found on its way in both directions.
    marked = np.full_like(array, 2.0**-77)
    pattern = np.float32(2.0**-77 * (1 if up else 4)).tobytes() * 8
    left = []

    def change(block):
        if left and pattern in block:
            left.pop()
            at = block.index(pattern)
            return block[: at + 1] + b"\x55" + block[at + 2 :]
        return block

    with relaying(address) as relay:
        setattr(relay, "alter_up" if up else "alter", change)
        left.append(1)
        with Client(relay.address, checksums=True, retry=ONCE) as client:
            with pytest.raises(errors.DataLossError) as caught:
                halved(client, marked)
            assert caught.value.reason == "CHECKSUM_MISMATCH"
        left += [1, 2]
        with Client(relay.address, checksums=True, retry=PROMPT) as client:
            result = halved(client, marked)
        assert not left
    assert result.tobytes() == halved(plain, marked).tobytes()
