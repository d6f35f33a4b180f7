"""Broken and interrupted calls give the bits of undisturbed ones, or the right error.

A client that gets into another process connects anew there.
"""

import asyncio
import multiprocessing
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller

import grpc
import numpy as np
import pytest

from gradwire import AsyncClient, Client, RetryPolicy, errors, ops
from gradwire_server.engine import prepared as server_prepared
from gradwire_server.errors import RETRY_AFTER_S
from support import clients
from support.clients import CALLS, FORKING, ITEM, LARGE, SMALL, copied, halved, run_script
from support.load import PATIENT
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import ServerThread, serving, serving_process

DIFF_DST = np.random.default_rng(0).normal(size=(1, 2, 512, 512)).astype(np.float32)
RESULT_BYTES = DIFF_DST.nbytes // 4

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(scope="module")
def undisturbed(plain):
    return halved(plain, DIFF_DST)


def noting(event):
    return lambda _sent_bytes, _received_bytes: event.set()


@pytest.mark.parametrize(
    "cuts",
    [
        *((at,) for at in (1, 300, RESULT_BYTES // 2, RESULT_BYTES)),
        (90_000, 1, 1, 200_000, 90_000, 500),
        (90_000,) * 5,
    ],
    ids=str,
)
def test_a_stream_that_is_cut_anywhere_gives_the_same_bits(address, face, undisturbed, cuts):
    few = len(cuts) == 5
    options = {"chunk_bytes": 50_001, "retry": clients.PROMPT}
    if few:
        options = {"chunk_bytes": 10_000, "retry": clients.SOON_OVER}
    with relaying(address, cuts=cuts) as relay, face(relay.address, **options) as client:
        np.testing.assert_array_equal(halved(client, DIFF_DST), undisturbed)
        assert relay.connections > (5 if few else 1)


def test_calls_outlive_a_server_that_is_killed_and_started_again(undisturbed):
    part = DIFF_DST[:, :, :64, :64]
    calls = []
    with (
        serving_process() as server,
        relaying(server.address, cuts=(RESULT_BYTES // 3,)) as relay,
        Client(relay.address, chunk_bytes=50_000) as streaming,
        Client(server.address, retry=PATIENT) as small,
        ThreadPoolExecutor(1) as pool,
    ):
        before = halved(small, part)

        def restart():
            server.kill()
            calls.append(pool.submit(halved, small, part))
            server.start()

        relay.on_cut = restart
        np.testing.assert_array_equal(halved(streaming, DIFF_DST), undisturbed)
        assert relay.connections > 1
        np.testing.assert_array_equal(calls[0].result(), before)


def test_a_stream_that_meets_another_evaluation_starts_again(address, undisturbed, monkeypatch):
    upgrade = partial(monkeypatch.setattr, server_prepared, "NUMERICS_VERSION", "another")
    reports = []
    with (
        relaying(address, cuts=(RESULT_BYTES // 2,), on_cut=upgrade) as relay,
        Client(relay.address, chunk_bytes=50_000, retry=clients.PROMPT) as client,
    ):
        result = halved(client, DIFF_DST, on_progress=lambda *report: reports.append(report))
        assert relay.cut == 1
    np.testing.assert_array_equal(result, undisturbed)
    assert reports == sorted(reports)


def test_a_server_that_takes_smaller_chunks_than_the_one_before_is_heeded(relay):
    with serving(max_chunk_bytes=10_000) as small, Client(relay.address) as client:
        copied(client, DIFF_DST)
        relay.lead_to(small.address)
        np.testing.assert_array_equal(copied(client, DIFF_DST), DIFF_DST)


def test_every_refusal_reaches_a_client_that_is_writing(address, face):
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    with face(address, chunk_bytes=20_000) as client:
        copied(client, DIFF_DST)
        for _ in range(60):
            with pytest.raises(errors.InvalidRequestError) as caught:
                client.evaluate(wrong, DIFF_DST, output_shape=(1, 2, 256, 256))
            assert caught.value.field == "operator.dml_resample_grad.scales"
            assert caught.value.request_id


def test_every_drain_reaches_a_client_that_is_writing(face):
    server = ServerThread(max_memory_bytes=8 << 30, max_streams=80)
    server.start()
    started = [threading.Event() for _ in range(40)]
    # Nobody reads this much before the server ends the stream.
    huge = np.zeros((1, 1, 4096, 4096), np.float32)
    with (
        relaying(server.address) as relay,
        # A server that is short of time ends streams without a word, and then is gone.
        face(relay.address, chunk_bytes=10_000, retry=clients.BRISK) as client,
        ThreadPoolExecutor(len(started)) as pool,
    ):
        calls = [pool.submit(copied, client, huge, on_progress=noting(event)) for event in started]
        assert all(event.wait(30) for event in started)
        # Every stream is under way, and from here on the network takes no more of it.
        relay.hold()
        server.stop()
        assert {type(call.exception()) for call in calls} == {errors.UnavailableError}


def test_callers_that_outnumber_streams_all_get_results_and_fewer_tries_the_time_to_wait():
    underway = threading.Event()
    with (
        serving(max_streams=1) as server,
        relaying(server.address) as relay,
        Client(relay.address, chunk_bytes=10_000) as slow,
        Client(server.address, retry=RetryPolicy(max_attempts=2)) as impatient,
        Client(server.address, retry=clients.PROMPT) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        relay.hold(after=100_000)
        calls = [pool.submit(copied, slow, DIFF_DST, on_progress=noting(underway))]
        assert underway.wait(30)
        with pytest.raises(errors.OverloadedError) as caught:
            copied(impatient, DIFF_DST)
        relay.let_go()
        for call in [*calls, *(pool.submit(copied, client, DIFF_DST) for _ in range(12))]:
            np.testing.assert_array_equal(call.result(), DIFF_DST)
    assert caught.value.retry_after_s == RETRY_AFTER_S


def test_shares_avoid_a_server_on_which_one_broke(address, nobody):
    timings = []
    options = {"split_threshold_bytes": 0, "retry": clients.PROMPT}
    with Client([nobody, address], split=True, **options) as client:
        # A clock that stands still: what is avoided stays so.
        vars(vars(client)["_calls"].get().channels.shares)["_clock"] = lambda: 1.0
        for _ in range(3):
            halved(client, DIFF_DST, on_timing=timings.append)
    assert timings[0].tries > 1
    assert [timing.tries for timing in timings[1:]] == [1, 1]


def test_a_stream_may_take_longer_than_the_timeout_while_something_moves():
    # Something moves with every slab.
    with serving(slab_bytes=1 << 16) as steady, relaying(steady.address) as relay:
        relay.delay_s = 0.06
        with Client(relay.address, timeout_s=2.4, chunk_bytes=1 << 16) as client:
            started = time.monotonic()
            np.testing.assert_array_equal(copied(client, LARGE), LARGE)
            assert time.monotonic() > started + 2.4


@pytest.mark.parametrize(
    ("array", "stall_s", "timeout_s"),
    [(SMALL, 60.0, 0.2), (LARGE, 60.0, 0.2), (LARGE, 0.2, None)],
    ids=["unary", "stream", "stall"],
)
def test_a_deadline_is_kept(relay, face, array, stall_s, timeout_s):
    words = r"within timeout_s, 0\.2 s" if timeout_s else r"nothing moved for 0\.2 s"
    with face(relay.address, timeout_s=stall_s) as client:
        client.wait_ready()
        relay.hold()
        with pytest.raises(errors.DeadlineExceededError, match=words) as caught:
            copied(client, array, timeout_s=timeout_s)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.request_id


@pytest.mark.parametrize("error", [ZeroDivisionError(), errors.UnavailableError("another server")])
def test_an_error_of_on_progress_ends_the_call(address, face, error):
    def tear(_sent, _received):
        raise error

    with face(address, chunk_bytes=5000) as client:
        with pytest.raises(type(error)) as caught:
            copied(client, LARGE, on_progress=tear)
        # Not taken for an error of this call.
        assert caught.value is error
        np.testing.assert_array_equal(copied(client, LARGE), LARGE)


@clients.either_size
def test_an_interrupt_ends_the_call(relay, array):
    with Client(relay.address) as client:
        copied(client, array)
        relay.hold()
        with clients.interrupted(after_s=0.2), pytest.raises(KeyboardInterrupt):
            copied(client, array)
        relay.let_go()
        np.testing.assert_array_equal(copied(client, array), array)


@clients.either_size
async def test_cancelling_a_task_ends_its_call_at_once(relay, array):
    async with AsyncClient(relay.address) as client:
        await copied(client, array)
        relay.hold()
        sent = relay.carried_bytes
        task = asyncio.create_task(copied(client, array))
        await asyncio.to_thread(wait_until, lambda: relay.carried_bytes > sent)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        relay.let_go()
        np.testing.assert_array_equal(await copied(client, array), array)


@clients.either_size
def test_closing_ends_calls_of_others_and_refuses_more(relay, face, array):
    with face(relay.address) as client, ThreadPoolExecutor(1) as pool:
        copied(client, array)
        relay.swallow()
        # More than acknowledgements of calls before take.
        sent = relay.carried_bytes + 100
        call = pool.submit(copied, client, array)
        wait_until(lambda: relay.carried_bytes > sent)
        client.close()
        with pytest.raises(errors.CallCancelledError, match=r"^the client was closed"):
            call.result(30)
        client.close()
        for refused in (*CALLS.values(), methodcaller("wait_ready")):
            with pytest.raises(RuntimeError, match="closed"):
                refused(client)


async def test_another_event_loop_is_refused(address):
    async def use_elsewhere():
        with pytest.raises(RuntimeError, match="another event loop"):
            await copied(client, SMALL)

    async with AsyncClient(address) as client:
        await copied(client, SMALL)
        await asyncio.to_thread(asyncio.run, use_elsewhere())


# Without the task's reference this ends by SIGSEGV within some rounds.
DROPPING = """
import asyncio, gc, sys, threading
import numpy as np
from gradwire import AsyncClient, Item, ops

sys.setswitchinterval(1e-6)
gc.disable()
item = Item(ops.DmlResample(interpolation_mode="linear"), np.ones((4, 4), np.float32), (4, 4))
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def beat():
    loop.call_later(2e-4, beat)

async def items():
    while True:
        yield item

async def drop_unread():
    client = AsyncClient(sys.argv[1])
    for _ in range(8):
        results = client.evaluate_many(items(), max_in_flight=2)
        await anext(results)
        cycle = [results]
        cycle.append(cycle)
    await client.close()
    await asyncio.sleep(0.05)

loop.call_soon_threadsafe(beat)
for _ in range(25):
    asyncio.run_coroutine_threadsafe(drop_unread(), loop).result()
    gc.collect()
print("done")
"""


@pytest.mark.parametrize(
    "script", [FORKING, pytest.param(DROPPING, marks=pytest.mark.slow)], ids=["fork", "drop"]
)
def test_children_connect_anew_and_any_thread_may_collect_results(address, script):
    run_script(script, address)


def test_results_stay_in_the_process_that_asked(plain, monkeypatch):
    """No process is forked here: gRPC may crash where that happens amid a call."""
    results = plain.evaluate_many([ITEM] * 20)
    next(results)
    with monkeypatch.context() as patch:
        own = os.getpid()
        patch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(RuntimeError, match="forked"):
            next(results)
    assert len(list(results)) == 19


def parent_and_result(client):
    with client:
        return os.getppid(), copied(client, LARGE)


def test_a_pickled_client_has_its_arguments_and_connections_of_its_own(address):
    options = {"chunk_bytes": 5000, "retry": RetryPolicy(max_attempts=3)}
    with Client(address, timeout_s=7.0, **options) as client:
        client.server_info()
        dumped = pickle.dumps(client)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            parent, result = pool.apply(parent_and_result, (client,))
    assert parent == os.getpid()
    np.testing.assert_array_equal(result, LARGE)
    assert pickle.dumps(pickle.loads(dumped)) == dumped  # noqa: S301 - our own bytes

    async def use(client):
        # It belongs to the event loop in which it is used first.
        async with client:
            np.testing.assert_array_equal(await copied(client, SMALL), SMALL)
            return pickle.dumps(client)

    dumped = asyncio.run(use(AsyncClient(address, chunk_bytes=5000)))
    asyncio.run(use(pickle.loads(dumped)))  # noqa: S301 - our own bytes
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match="credentials"):
            pickle.dumps(kind("127.0.0.1:1", credentials=grpc.ssl_channel_credentials()))


def test_refused_data_is_sent_again_only_where_chunks_were_too_large(plain):
    channels = vars(plain)["_calls"].get().channels
    evaluation = channels.evaluation(
        op=clients.COPY, array=LARGE, output_shape=None, out=None, timeout_s=None
    )
    transfer, refused = evaluation.shares.whole, errors.InvalidRequestError("refused")
    refused.reason = "INVALID_DATA"
    with pytest.raises(errors.InvalidRequestError):
        evaluation.recover(refused)
    transfer.too_large = True
    assert evaluation.recover(refused) == 0.0
    transfer.begin()
    with pytest.raises(errors.InvalidRequestError):
        evaluation.recover(refused)


@pytest.mark.parametrize(
    ("face", "name"),
    [
        *((Client, name) for name in ("Evaluate", "EvaluateStream", "EvaluateMany")),
        *((clients.AWAITED, name) for name in ("Evaluate", "EvaluateStream")),
    ],
)
def test_a_call_ends_that_no_server_answers_any_more(monkeypatch, relay, face, name):
    # Takes 40 s by default.
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_MS", 1000)
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_TIMEOUT_MS", 500)
    # Without keepalive calls would end with another error, after the timeout.
    with face(relay.address, retry=clients.ONCE, timeout_s=60) as client:
        CALLS[name](client)
        relay.swallow()
        with pytest.raises(errors.UnavailableError):
            CALLS[name](client)
