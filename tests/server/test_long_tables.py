"""Tables take long where axes do: who asks for them can stop them."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire import Client, DeadlineExceededError, ops
from gradwire_server import LocalClient
from gradwire_server.engine import EvaluationRequest, Limits, PlanCache, Preparer, TensorSpec
from serving import serving

LANCZOS = ops.JaxResize(method="lanczos5")
# Seconds of work in float64, in thousands of blocks.
LENGTHS = 500_000, 1_000_000
TIMEOUT_S = 0.2


def request(inputs: int, outputs: int) -> EvaluationRequest:
    float64 = np.dtype(np.float64)
    source, result = (TensorSpec.packed(float64, (length,)) for length in (inputs, outputs))
    return EvaluationRequest(LANCZOS.name, LANCZOS, source, result)


def test_a_check_is_called_between_blocks_and_ends_what_it_refuses() -> None:
    preparer = Preparer(Limits(), PlanCache(max_entries=1 << 24))
    asked = request(50_000, 40_000)
    calls: list[int] = []

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == 5:
            raise KeyError

    with pytest.raises(KeyError):
        preparer.prepare(asked, check=check)
    assert not preparer.is_quick(asked)
    calls[:] = range(5)
    expected = Preparer(Limits(), PlanCache(max_entries=0)).prepare(asked)
    assert preparer.prepare(asked, check=check).digest == expected.digest
    assert preparer.is_quick(asked)
    assert len(calls) > 10


def test_a_server_stops_building_when_the_deadline_has_passed() -> None:
    with serving(compute_threads=1, plan_cache_entries=1 << 26) as server:
        with (
            Client(server.address) as client,
            pytest.raises(DeadlineExceededError),
        ):
            client.evaluate(
                LANCZOS, np.ones(LENGTHS[0]), output_shape=LENGTHS[1:], timeout_s=TIMEOUT_S
            )
        workshop = server.server.workshop
        # The only thread does this when it has left the tables.
        workshop.pool.submit(int).result()
        assert not workshop.preparer.is_quick(request(*LENGTHS))


def test_the_time_of_a_local_call_is_looked_at_between_blocks() -> None:
    with (
        LocalClient("numpy_cpu") as client,
        pytest.raises(DeadlineExceededError, match="while tables were built"),
    ):
        client.evaluate(LANCZOS, np.ones(LENGTHS[0]), output_shape=LENGTHS[1:], timeout_s=TIMEOUT_S)
