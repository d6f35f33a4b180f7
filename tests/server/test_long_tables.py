"""Long tables are built beside other work, in admitted memory, as long as somebody waits."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from gradwire import CallCancelledError, Client, DeadlineExceededError, ops, v1
from gradwire_server import LocalClient
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TableCache, TensorSpec
from support.raw_calls import PATIENCE_S, RawClient, float32, refused, wait_until
from support.servers import served, serving

LANCZOS = ops.JaxResize(method="lanczos5")
# Seconds of work in float64, in thousands of blocks.
LENGTHS = 500_000, 1_000_000
TIMEOUT_S = 0.2


def request(inputs: int, outputs: int) -> EvaluationRequest:
    float64 = np.dtype(np.float64)
    source, result = (TensorSpec.packed(float64, (length,)) for length in (inputs, outputs))
    return EvaluationRequest(LANCZOS.name, LANCZOS, source, result)


def test_a_check_is_called_between_blocks_and_ends_what_it_refuses() -> None:
    preparer = Preparer(Limits(), TableCache(max_entries=1 << 24))
    asked = request(50_000, 40_000)
    calls: list[int] = []

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == 5:
            raise KeyError

    with pytest.raises(KeyError):
        preparer.prepare(asked, check=check)
    assert not preparer.preparation(asked).is_quick
    calls[:] = range(5)
    expected = Preparer(Limits(), TableCache(max_entries=0)).prepare(asked)
    assert preparer.prepare(asked, check=check).digest == expected.digest
    assert preparer.preparation(asked).is_quick
    assert len(calls) > 10


def test_a_server_stops_building_when_the_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tables that were built would be found in a cache large enough for them.
    large = partial(TableCache, max_entries=1 << 26)
    monkeypatch.setattr("gradwire_server.server.TableCache", large)
    with serving(compute_threads=1) as server:
        with Client(server.address) as client, pytest.raises(DeadlineExceededError):
            client.evaluate(
                LANCZOS, np.ones(LENGTHS[0]), output_shape=LENGTHS[1:], timeout_s=TIMEOUT_S
            )
        service = server.server.service
        wait_until(lambda: not service.admission.computing)
        assert not service.preparer.preparation(request(*LENGTHS)).is_quick


def test_the_time_of_a_local_call_is_looked_at_between_blocks() -> None:
    with (
        LocalClient("numpy_cpu") as client,
        pytest.raises(DeadlineExceededError, match="while tables were built"),
    ):
        client.evaluate(LANCZOS, np.ones(LENGTHS[0]), output_shape=LENGTHS[1:], timeout_s=TIMEOUT_S)


def short_message(length: int) -> v1.EvaluateRequest:
    """Ask in a few bytes for a table of many."""
    operator = v1.JaxResize(method=v1.JaxResize.METHOD_LANCZOS5)
    given = v1.TensorDescriptor(
        data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=[length], strides=[0]
    )
    return v1.EvaluateRequest(
        operator=v1.Operator(jax_resize_grad=operator),
        input=given,
        output=float32(16),
        data=bytes(4),
    )


def test_tables_that_do_not_fit_in_memory_are_refused_for_now() -> None:
    with (
        served(compute_threads=1, max_memory_bytes=1 << 27) as (server, client),
        ThreadPoolExecutor(1) as pool,
    ):
        admission = server.server.service.admission
        first = pool.submit(client.evaluate, short_message(300_000))
        wait_until(lambda: admission.memory_bytes)
        refused(client.evaluate(short_message(300_001)), "OVERLOADED", limit="max_memory_bytes")
        assert first.result(timeout=PATIENCE_S).refusal is None
        wait_until(lambda: not admission.memory_bytes)


def test_tables_larger_than_the_memory_of_all_are_refused_before_they_are_built() -> None:
    with served(compute_threads=1, max_memory_bytes=1 << 26, max_request_memory_bytes=1 << 26) as (
        server,
        client,
    ):
        answer = client.evaluate(short_message(1_000_000))
        refused(answer, "LIMIT_EXCEEDED", limit="max_memory_bytes")
        assert server.server.service.admission.entered == 0


def test_shorter_tables_are_ready_before_longer_ones_that_came_first() -> None:
    with (
        serving(compute_threads=1) as server,
        Client(server.address) as client,
        Client(server.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        array = np.broadcast_to(np.ones(1), LENGTHS[:1])
        first = pool.submit(client.evaluate, LANCZOS, array, output_shape=LENGTHS[1:])
        admission = server.server.service.admission
        wait_until(lambda: admission.computing)
        other.evaluate(LANCZOS, np.ones(16), output_shape=(5_000,))
        assert not first.done()
        client.close()
        with pytest.raises(CallCancelledError):
            first.result(timeout=PATIENCE_S)
        wait_until(lambda: not (admission.memory_bytes or admission.computing))


def test_many_tables_of_one_address_hold_up_no_table_of_another() -> None:
    with (
        serving(address="[::]:0", insecure=True, compute_threads=1, max_queue_s=60) as server,
        ThreadPoolExecutor(20) as pool,
        contextlib.ExitStack() as stack,
    ):
        port = server.address.rpartition(":")[2]
        callers = [stack.enter_context(RawClient(f"127.0.0.1:{port}")) for _ in range(20)]
        other = stack.enter_context(RawClient(f"[::1]:{port}"))
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
