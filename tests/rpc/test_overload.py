"""Full servers refuse at once; long work holds up no other call."""

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

import gradwire
from gradwire import Client, ops, v1
from gradwire_server import LocalClient
from gradwire_server.engine import EvaluationRequest, Preparer, TensorSpec
from support import raw_calls
from support.clients import ONCE, halved
from support.raw_calls import PATIENCE_S, ManyCall, published_request, refused, wait_until
from support.servers import Gated, gated, laborious, served, serving, wait_for, wait_idle


def check_overload(answer, setting, *, in_band=False):
    refusal = refused(answer, "OVERLOADED", in_band=in_band, limit=setting)
    assert f"GRADWIRE_{setting.upper()})" in refusal.message


def test_streams_beyond_max_streams_are_asked_to_come_back():
    with served(max_streams=3) as (server, client):
        with ManyCall(client) as many:
            many.send(raw_calls.named(published_request(), "a"))
            many.receive()
            held = [raw_calls.WaitingStream(client, early=1) for _ in range(2)]
            answer = client.stream(raw_calls.as_stream(published_request()))
            check_overload(answer, "max_streams", in_band=True)
            # Before its open is read.
            assert client.stream([]).refusal is not None
            with ManyCall(client) as other:
                raw_calls.ended(other.refusal(), "OVERLOADED")
            # Unary calls take no place.
            assert client.evaluate(published_request()).refusal is None
            for each in held:
                each.finish()
        wait_idle(server)
        client.check_alive()


def test_requests_beyond_max_memory_bytes_are_asked_to_come_back():
    with served(max_memory_bytes=1) as (server, client):
        held = raw_calls.WaitingStream(client, early=1)
        for how in raw_calls.BOTH_WAYS:
            answer = client.ask(published_request(), how)
            check_overload(answer, "max_memory_bytes", in_band=how == "EvaluateStream")
        held.cancel()
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


def test_evaluations_wait_for_a_thread_and_those_beyond_max_queue_are_refused_at_once():
    with (
        gated(max_queue=1) as (server, gate),
        raw_calls.RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        streams = [raw_calls.WaitingStream(client, laborious()) for _ in range(3)]
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
        # One computes and one is next.
        wait_for(server, computing=2, waiting=1)
        check_overload(client.evaluate(laborious()), "max_queue")
        # Small evaluations neither wait for them nor delay them.
        assert client.evaluate(published_request()).refusal is None
        # Streams wait for their turns and are refused none.
        for stream in streams:
            stream.send()
        wait_for(server, computing=2, waiting=4)
        many.send(*(raw_calls.named(laborious(), name) for name in "abc"))
        wait_for(server, computing=2, waiting=5)  # equal ones of one caller are a batch
        gate.set()
        (data,) = {call.result().data for call in calls}
        for stream in streams:
            answer = raw_calls.read_all(stream.call, itertools.chain([stream.opened], stream.call))
            assert (answer.refusal, answer.data) == (None, data)
        results = {name: each.result.data for name, each in many.answers().items()}
        assert results == dict.fromkeys("abc", data)
        wait_idle(server)
        assert server.server.service.admission.refusals == {"max_queue": 1}


def test_callers_that_fall_silent_or_do_not_read_hold_no_thread():
    with (
        raw_calls.silence([raw_calls.opening(published_request())]) as at_once,
        raw_calls.silence(raw_calls.unfinished()) as later,
        served(compute_threads=1, max_queue_s=60.0) as (server, client),
        ThreadPoolExecutor(4) as pool,
    ):
        calls = [client.start(each()) for each in (at_once, later) for _ in range(6)]
        calls += [client.start(raw_calls.as_stream(raw_calls.copies(1 << 15))) for _ in range(4)]
        for call in calls:
            assert next(call).WhichOneof("message") == "opened"
        wait_for(server, computing=0, waiting=0)
        answers = pool.map(client.evaluate, [laborious()] * 8)
        assert [answer.refusal for answer in answers] == [None] * 8
        assert server.server.service.admission.streams == len(calls)
        for call in calls:
            call.cancel()
        wait_idle(server)


def test_a_burst_of_one_client_is_served_whole():
    array = np.ones((1, 1, 4, 4), np.float32)

    async def burst(address):
        async with gradwire.AsyncClient(address, retry=ONCE) as client:
            calls = [halved(client, array) for _ in range(600)]
            return [each.tobytes() for each in await asyncio.gather(*calls)]

    with serving(max_connection_calls=16) as server:
        assert len(set(asyncio.run(burst(server.address)))) == 1
        wait_idle(server)


LANCZOS = ops.JaxResize(method="lanczos5")
# Seconds of work in float64, in thousands of blocks.
LENGTHS = 500_000, 1_000_000


def build_long(client, **options):
    """Evaluate what takes long tables."""
    array = np.broadcast_to(np.ones(1), LENGTHS[:1])
    return client.evaluate(LANCZOS, array, output_shape=LENGTHS[1:], **options)


def test_a_server_stops_building_when_the_deadline_has_passed(monkeypatch):
    # Tables that were built would be found in a cache large enough for them.
    large = partial(Preparer, most_kept=1 << 26)
    monkeypatch.setattr("gradwire_server.rpc.service_context.Preparer", large)
    with serving(compute_threads=1) as server:
        with Client(server.address) as client, pytest.raises(gradwire.DeadlineExceededError):
            build_long(client, timeout_s=0.2)
        service, float64 = server.server.service, np.dtype(np.float64)
        raw_calls.wait_until(lambda: not service.admission.computing)
        source, result = (TensorSpec.packed(float64, (length,)) for length in LENGTHS)
        asked = EvaluationRequest(LANCZOS.name, LANCZOS, source, result)
        assert not service.preparer.preparation(asked).is_quick


def test_the_time_of_a_local_call_is_looked_at_between_blocks():
    late = pytest.raises(gradwire.DeadlineExceededError, match="after 0 result bytes")
    with LocalClient("numpy_cpu") as client, late:
        build_long(client, timeout_s=0.2)


def short_message(length):
    """Ask in a few bytes for a table of many."""
    operator = v1.JaxResize(method=v1.JaxResize.METHOD_LANCZOS5)
    return v1.EvaluateRequest(
        operator=v1.Operator(jax_resize_grad=operator),
        input=raw_calls.float32(length, strides=(0,)),
        output=raw_calls.float32(16),
        data=bytes(4),
    )


def test_tables_that_do_not_fit_in_memory_are_refused_for_now_or_for_ever():
    limits = {"max_memory_bytes": 1 << 27, "max_request_memory_bytes": 1 << 27}
    with served(compute_threads=1, **limits) as (server, client), ThreadPoolExecutor(1) as pool:
        admission = server.server.service.admission
        never = client.evaluate(short_message(300_000))
        refused(never, "LIMIT_EXCEEDED", limit="max_memory_bytes")
        assert admission.entered == 0, "it is known before they are built"
        first = pool.submit(client.evaluate, short_message(250_000))
        wait_until(lambda: admission.memory_bytes)
        refused(client.evaluate(short_message(250_001)), "OVERLOADED", limit="max_memory_bytes")
        assert first.result(timeout=PATIENCE_S).refusal is None
        wait_until(lambda: not admission.memory_bytes)


def test_shorter_tables_are_ready_before_longer_ones_that_came_first():
    with (
        serving(compute_threads=1) as server,
        Client(server.address) as client,
        Client(server.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(build_long, client)
        admission = server.server.service.admission
        wait_until(lambda: admission.computing)
        other.evaluate(LANCZOS, np.ones(16), output_shape=(5_000,))
        assert not first.done()
        client.close()
        with pytest.raises(gradwire.CallCancelledError):
            first.result(timeout=PATIENCE_S)
        wait_until(lambda: not (admission.memory_bytes or admission.computing))


def test_many_tables_of_one_address_hold_up_no_table_of_another():
    with (
        serving(address="[::]:0", insecure=True, compute_threads=1, max_queue_s=60) as server,
        ThreadPoolExecutor(12) as pool,
        ExitStack() as stack,
    ):
        port = server.address.rpartition(":")[2]
        callers = [stack.enter_context(raw_calls.RawClient(f"127.0.0.1:{port}")) for _ in range(12)]
        other = stack.enter_context(raw_calls.RawClient(f"[::1]:{port}"))
        greedy = [
            pool.submit(caller.evaluate, short_message(100_000 + number))
            for number, caller in enumerate(callers)
        ]
        active = server.server.service.active
        wait_until(lambda: active.in_phase["queue"] >= len(greedy))
        assert other.evaluate(short_message(100_100)).refusal is None
        # Two are built at once: those under way, and those beside the other's.
        assert sum(call.done() for call in greedy) <= 5
        assert [call.result(timeout=PATIENCE_S).refusal for call in greedy] == [None] * len(greedy)


def test_a_backend_that_may_wait_holds_up_no_other_call():
    backend = Gated(least_work=0, may_wait=True)
    backend.gate.clear()
    with (
        served(backend=backend, compute_threads=3) as (_, client),
        ManyCall(client) as many,
        ThreadPoolExecutor(2) as pool,
    ):
        many.send(raw_calls.named(published_request(), "one"))
        calls = [pool.submit(client.ask, published_request(), how) for how in raw_calls.BOTH_WAYS]
        for _ in range(3):
            assert backend.at_work.acquire(timeout=PATIENCE_S)
        question = v1.ListOperatorsRequest()
        assert client.stub.ListOperators(question, timeout=PATIENCE_S).operators
        backend.gate.set()
        results = {call.result(timeout=PATIENCE_S).data for call in calls}
        assert results | {many.receive().result.data} == {raw_calls.PUBLISHED_RESULT}
