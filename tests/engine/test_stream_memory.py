"""What requests of one stream hold of the budget."""

from __future__ import annotations

import pytest

from gradwire_server.errors import ServerFullError
from gradwire_server.scheduling.admission import Admission, StreamMemory

BUDGET = 160
SHARE = 10


@pytest.fixture
def admission() -> Admission:
    return Admission(max_memory_bytes=BUDGET, max_streams=1)


def test_a_few_requests_may_hold_what_they_need_and_more_their_share(admission: Admission) -> None:
    memory = StreamMemory(admission, few=2)
    for needed in (3 * SHARE, 3 * SHARE):
        assert not memory.must_wait(needed)
        memory.take(needed)
    assert memory.must_wait(1)
    memory.free(3 * SHARE)
    memory.free(3 * SHARE)
    small = StreamMemory(admission, few=2)
    for _ in range(SHARE):
        assert not small.must_wait(1)
        small.take(1)
    assert small.must_wait(1)
    small.free(1)
    assert not small.must_wait(1)


def test_only_who_holds_something_waits_for_others_are_refused(admission: Admission) -> None:
    first, second = StreamMemory(admission, few=2), StreamMemory(admission, few=2)
    first.take(BUDGET)
    assert first.must_wait(1)
    assert not admission.refusals
    assert not second.must_wait(1)
    with pytest.raises(ServerFullError):
        second.take(1)
    assert (second.requests, second.nbytes) == (0, 0)


def test_all_is_given_back_once(admission: Admission) -> None:
    memory = StreamMemory(admission, few=2)
    for needed in (1, 2, 3):
        memory.take(needed)
    memory.free(2)
    memory.free_all()
    memory.free_all()
    memory.free(3)
    assert admission.memory_bytes == 0
