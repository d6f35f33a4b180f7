"""Callers that stop reading or writing, run out of time, or break off."""

import itertools
import logging
import time

import grpc
import pytest

from support import raw_calls
from support.raw_calls import ManyCall, RawClient, ended, named, wait_until
from support.relay import relaying
from support.servers import gated, laborious, lasting_client, served, serving, wait_for, wait_idle

MIB = 1 << 20

STALL_S = 0.4


@pytest.fixture(scope="module")
def server():
    """Run a server that soon ends callers that stop."""
    with serving(stall_timeout_s=STALL_S, compute_threads=1) as server:
        yield server


client = pytest.fixture(lasting_client)


# Open and the data.
WHOLE = raw_calls.as_stream(raw_calls.published_request())


@pytest.mark.parametrize("messages", [[], WHOLE[:1], raw_calls.unfinished(), WHOLE], ids=len)
def test_silent_writers_end(client, messages):
    with raw_calls.silence(messages) as silent:
        refusal = raw_calls.ended(client.stream(silent()), "STALLED", timeout_s=STALL_S)
    assert str(STALL_S) in refusal.message


def test_a_caller_of_many_that_falls_silent_is_ended(client):
    for answered in (0, 3):
        with ManyCall(client) as call:
            for number in range(answered):
                call.send(named(raw_calls.published_request(), str(number)))
                call.receive()
            ended(call.refusal(), "STALLED", timeout_s=STALL_S)


def test_each_message_renews_the_stall_timeout():
    data = bytes(64 << 10)

    def messages():
        yield raw_calls.opening(raw_calls.identity_request(4, 4 << 10))
        for each in raw_calls.chunks(data, 16 << 10):
            time.sleep(0.4)
            yield each

    with served(stall_timeout_s=1.2) as (_, client):
        assert client.stream(messages()).data == data


def test_readers_that_stop_are_ended(server, client):
    admission = server.server.service.admission
    before = admission.entered
    calls = [client.start(raw_calls.as_stream(raw_calls.copies(1 << 15))) for _ in range(4)]
    first = [next(calls[0]) for _ in range(3)]
    wait_until(lambda: admission.entered >= before + len(calls))
    wait_idle(server)
    for came, call in zip((first, [], [], []), calls, strict=True):
        # Chunks in transit still arrive, and then the error.
        answer = raw_calls.read_all(call, itertools.chain(came, call))
        raw_calls.refused(answer, "STALLED")
        assert len(answer.data) < 64 * MIB


def test_a_caller_of_many_that_does_not_read_ends(server, client):
    admission = server.server.service.admission
    before = admission.entered
    with ManyCall(client) as call:
        # Answers of 1 MiB: far more of them than any buffers on the way could hold.
        call.send(*(named(raw_calls.copies(512), str(number)) for number in range(500)))
        # It may have been ended before anybody looks.
        wait_until(lambda: admission.entered > before)
        wait_idle(server)
        raw_calls.refused(call.refusal(), "STALLED", timeout_s=STALL_S)
        assert call.answered < 100


@pytest.mark.parametrize(("size", "fits"), [(32 << 10, True), (256 << 20, False)])
def test_writing_all_before_reading_is_served_where_flow_control_lets_it_through(
    server, client, size, fits
):
    written, pattern = [], bytes(range(256))

    def messages():
        yield raw_calls.opening(raw_calls.identity_request(size >> 14, 1 << 12))
        for each in raw_calls.chunks(pattern * (size // 256), 256 << 10):
            yield each
            written.append(len(each.chunk.data))

    call = client.start(messages())
    if fits:
        wait_until(lambda: sum(written) == size)
        assert raw_calls.read_all(call).data == pattern * (size // 256)
        return
    # On a busy machine it may have come and gone before anybody looks.
    wait_until(lambda: server.server.service.admission.streams or not call.is_active())
    held = 0
    # Once the stream has ended grpc takes the rest of the messages and drops them.
    while server.server.service.admission.streams:
        held = sum(written)
        time.sleep(0.001)
    wait_idle(server)
    # No more was written than the buffers in transit hold.
    assert held < 64 * MIB
    raw_calls.refused(raw_calls.read_all(call), "STALLED")


@pytest.mark.parametrize("how", [*raw_calls.BOTH_WAYS, "EvaluateMany", "cancelled"])
def test_work_stops_with_its_call(server, client, how):
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    if how == "cancelled":
        call = client.stub.Evaluate.future(raw_calls.summed(1 << 18), timeout=raw_calls.PATIENCE_S)
        wait_until(lambda: server.server.service.admission.memory_bytes)
        call.cancel()
    elif how == "EvaluateMany":
        with ManyCall(client, timeout_s=0.3) as many:
            many.send(*(named(raw_calls.summed(1 << 18), str(number)) for number in range(8)))
            assert many.refusal().code is late
    else:
        assert client.ask(raw_calls.summed(1 << 18), how, timeout_s=0.3).code is late
    wait_idle(server)
    # Threads are free: this is too long for the event loop.
    assert client.evaluate(laborious()).refusal is None


def test_a_computation_longer_than_the_stall_timeout_is_no_stall():
    with (
        gated(stall_timeout_s=0.6) as (server, gate),
        RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        call = client.start(raw_calls.as_stream(laborious()))
        wait_for(server, computing=1, waiting=0)
        many.send(named(laborious(), "one"))
        time.sleep(0.9)  # nothing moves but the computing thread
        gate.set()
        data = raw_calls.read_all(call).data
        assert len(data) == 16
        assert many.receive().result.data == data


def test_a_broken_connection_is_no_fault_of_the_server(caplog):
    # A write reports a broken connection sometimes before and sometimes after the call has ended.
    times = 30
    with caplog.at_level(logging.INFO), serving(compute_threads=1) as server:
        in_phase = server.server.service.active.in_phase
        for _ in range(times):
            with relaying(server.address) as relay, RawClient(relay.address) as client:
                # More results than any buffers on the way hold, and none is read.
                many, stream = (
                    ManyCall(client),
                    client.start(raw_calls.as_stream(raw_calls.copies(1 << 12))),
                )
                many.send(*(named(raw_calls.copies(512), str(number)) for number in range(40)))
                wait_until(lambda: in_phase["send"] >= 2)
                time.sleep(0.05)  # until all buffers are full and writes wait for them
                relay.close()
                del many, stream
                wait_idle(server)
    ended = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert [each["status"] for each in ended] == ["CANCELLED"] * 2 * times
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
