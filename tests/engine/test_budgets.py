"""What is kept and what is let in stays within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire_server.engine import Admission, PlanCache
from gradwire_server.errors import OverloadedError
from gradwire_server.plans import BandedMap, Plan
from gradwire_server.recent import Recent


def _plan(size: int) -> Plan:
    index = np.arange(size)[::2, None]
    bands = BandedMap.from_taps(index, np.ones(index.shape, np.float32), inputs=size)
    return Plan.build([bands], (size,))


def _unwanted() -> Plan:
    raise AssertionError("a kept plan is not built again")


def test_recent_plans_are_kept_and_the_oldest_goes_first() -> None:
    entries = _plan(8).table_entries
    plans = PlanCache(max_entries=2 * entries)
    kept = plans.get("a", lambda: _plan(8))
    plans.get("b", lambda: _plan(8))
    assert plans.get("a", _unwanted) is kept
    plans.get("c", lambda: _plan(8))
    assert ["a" in plans, "b" in plans, "c" in plans] == [True, False, True]


def test_a_plan_larger_than_the_cache_is_not_kept() -> None:
    plans = PlanCache(max_entries=10)
    plans.get("large", lambda: _plan(100))
    assert "large" not in plans


def test_values_are_kept_within_their_number_and_their_weight() -> None:
    recent: Recent[str] = Recent(most=2, max_weight=10)
    for key, weight in (("a", 1), ("b", 9), ("b", 2), ("c", 8)):
        recent.keep(key, key.upper(), weight=weight)
    assert ["a" in recent, recent.get("b"), recent.get("c")] == [False, "B", "C"]
    recent.keep("d", "D", weight=3)
    assert ["b" in recent, "c" in recent, recent.get("d")] == [False, False, "D"]
    recent.keep("e", "E", weight=11)
    assert "e" not in recent


def test_plans_without_tables_are_not_kept_forever() -> None:
    plans = PlanCache(max_entries=1)
    for size in range(1, 10_000):
        plans.get(size, lambda: Plan.build([None], (1,)))
    assert 1 not in plans
    assert 9_999 in plans


def test_memory_is_given_back_however_a_request_ends() -> None:
    admission = Admission(max_memory_bytes=100, max_streams=1, retry_after_s=0.5)
    with admission.memory(60):
        with pytest.raises(OverloadedError) as caught, admission.memory(50):
            pass
        assert caught.value.retry_after_s == 0.5
        with pytest.raises(KeyError), admission.memory(40):
            raise KeyError
        assert admission.memory_bytes == 60
    assert admission.memory_bytes == 0


def test_a_request_larger_than_the_budget_is_let_in_alone() -> None:
    admission = Admission(max_memory_bytes=100, max_streams=1, retry_after_s=0.5)
    with admission.memory(1000), pytest.raises(OverloadedError), admission.memory(1):
        pass
    assert admission.memory_bytes == 0


def test_streams_are_counted() -> None:
    admission = Admission(max_memory_bytes=100, max_streams=1, retry_after_s=0.5)
    give_way: list[OverloadedError] = []
    with (
        admission.stream("caller", give_way.append),
        pytest.raises(OverloadedError),
        admission.stream("other", give_way.append),
    ):
        pass
    assert admission.streams == 0
    assert not give_way
