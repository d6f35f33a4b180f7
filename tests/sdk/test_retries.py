"""Laws of tries: when a call is tried again, and what of a stream has moved by then."""

import math
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import RetryPolicy, errors, tensors, v1
from gradwire._core.evaluation import ResultBuffer, Transfer
from gradwire._core.retries import RetryBudget, Tries, is_retryable
from gradwire._wire.requests import prepare
from support.clients import COPY

AWAY = errors.UnavailableError("away")
DRAWS = st.floats(0, 1)


@st.composite
def policies(draw):
    initial_s = draw(st.floats(0.001, 10))
    return RetryPolicy(
        max_attempts=draw(st.integers(1, 30)),
        initial_backoff_s=initial_s,
        max_backoff_s=draw(st.floats(initial_s, 100)),
        backoff_multiplier=draw(st.floats(1, 10)),
    )


def pause_s(tries, error=AWAY, **options):
    given = {"progressed": False, "left_s": math.inf, "draw": 0.5, **options}
    return tries.pause_s(error, **given)


def pauses(tries, error=AWAY, **options):
    """Fail until there is no further try and the error is raised, at most a thousand times."""
    taken = []
    while len(taken) < 1000:
        try:
            taken.append(pause_s(tries, error, **options))
        except errors.GradwireError as raised:
            assert raised is error  # noqa: PT017 - whether it is raised is up to the test
            break
    return taken


@given(policies(), st.integers(1, 10_000), DRAWS)
def test_a_pause_lies_within_a_fifth_of_its_nominal_length_which_never_shrinks(
    policy, failures, draw
):
    nominal = policy.backoff_s(failures, draw=0.5)
    assert policy.initial_backoff_s <= nominal * (1 + 1e-9)
    assert nominal <= policy.max_backoff_s * (1 + 1e-9)
    assert 0.8 * nominal * (1 - 1e-9) <= policy.backoff_s(failures, draw=draw)
    assert policy.backoff_s(failures, draw=draw) <= 1.2 * nominal * (1 + 1e-9)
    assert nominal <= policy.backoff_s(failures + 1, draw=0.5)


@given(policies())
def test_there_are_as_many_tries_in_a_row_as_the_policy_allows(policy):
    # A server that answers is tried as often, whatever there is of time to connect.
    for limit_s in (None, 1e-9):
        tries = Tries(policy, RetryBudget(), connect_timeout_s=limit_s)
        assert len(pauses(tries)) == policy.max_attempts - 1


def test_progress_starts_the_count_anew_and_costs_the_budget_nothing():
    tries = Tries(RetryPolicy(max_attempts=2), RetryBudget())
    assert len(pauses(tries, progressed=True)) == 1000
    assert len(pauses(tries)) == 0
    tries = Tries(RetryPolicy(), RetryBudget())
    first, second = (pause_s(tries) for _ in range(2))
    assert second > first == pause_s(tries, progressed=True)


@given(st.floats(0, 1000), DRAWS, st.floats(0, 20))
def test_a_pause_is_as_long_as_the_server_asks_for_and_ends_before_the_deadline(
    retry_after_s, draw, left_s
):
    full = errors.OverloadedError("full", retry_after_s=retry_after_s)
    assert pause_s(Tries(RetryPolicy(), RetryBudget()), full, draw=draw) >= retry_after_s
    taken = pauses(Tries(RetryPolicy(), RetryBudget()), left_s=left_s)
    assert all(pause < left_s for pause in taken)


def test_a_client_whose_calls_mostly_fail_stops_repeating_them():
    budget = RetryBudget(max_tokens=10, token_ratio=0.5)
    patient = RetryPolicy(max_attempts=1000)
    assert len(pauses(Tries(patient, budget))) == 4
    assert len(pauses(Tries(patient, budget))) == 0
    for _ in range(20):
        budget.succeed()
    assert len(pauses(Tries(patient, budget))) == 4
    # Refusals by a server that is well count an eighth.
    for error, tries in (
        (errors.OverloadedError("full"), 4),
        (errors.OverloadedError("full", retry_after_s=0.001), 39),
        (errors.CallCancelledError("the server stops"), 4),
    ):
        assert len(pauses(Tries(patient, RetryBudget(max_tokens=10)), error)) == tries


FINAL = (
    *(errors.InvalidRequestError, errors.UnsupportedOperatorError, errors.LimitExceededError),
    *(errors.UseStreamError, errors.OutOfMemoryError, errors.DeadlineExceededError),
    errors.EvaluationChangedError,
)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_may_pass_is_repeated_and_a_stream_where_it_broke_mutely(streamed):
    for error, expected in (
        (errors.UnavailableError(""), True),
        (errors.CallCancelledError(""), True),
        *((errors.OverloadedError("", retry_after_s=s), True) for s in (0.0, 1.0)),
        (errors.ServerError(""), streamed),
        (errors.ServerError("", reason="INTERNAL"), False),
        *((kind(""), False) for kind in FINAL),
    ):
        assert is_retryable(error, streamed=streamed) is expected


@pytest.mark.parametrize(
    ("one_server", "lasting", "most"), [(True, True, 2), (False, True, 8), (True, False, 8)]
)
@pytest.mark.parametrize("attempts", [1, 8])
def test_what_waiting_does_not_mend_is_tried_twice_unless_there_are_other_servers(
    one_server, lasting, most, attempts
):
    error = errors.UnavailableError("")
    error.lasting = lasting
    tries = Tries(RetryPolicy(max_attempts=attempts), RetryBudget(), one_server=one_server)
    assert 1 + len(pauses(tries, error)) == min(most, attempts)


@pytest.mark.parametrize(
    ("most", "one_server", "reached"),
    [(8, True, False), (100, True, False), (100, True, True), (100, False, False)],
)
def test_a_single_server_that_never_answered_is_tried_for_three_seconds(
    monkeypatch, most, one_server, reached
):
    now, budget, refused = [0.5], RetryBudget(), errors.UnavailableError("refused")
    monkeypatch.setattr("gradwire._core.retries.time", SimpleNamespace(monotonic=lambda: now[0]))
    refused.unreachable = True
    if reached:
        budget.succeed()
    tries = Tries(RetryPolicy(max_attempts=most), budget, one_server=one_server)
    with suppress(errors.UnavailableError):
        while now[0] < 60:
            now[0] += pause_s(tries, refused)
    # The last try of the default policy is at the limit.
    assert now[0] == pytest.approx(3.5) if most == 8 else now[0] > 60


ARRAY = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)
BYTES = ARRAY.tobytes()
JOB = prepare(COPY, ARRAY, output_shape=ARRAY.shape, out=None)


def begun(buffer=None, **options):
    """Return a transfer in its first try."""
    transfer = Transfer(JOB, buffer or ResultBuffer(JOB), chunk_bytes=10, **options)
    transfer.begin()
    return transfer


def opened(digest="one", **changes):
    answer = v1.Opened(
        output=tensors.describe(ARRAY),
        read_from_byte=0,
        evaluation_digest=digest,
        max_chunk_bytes=100,
    )
    answer.MergeFrom(v1.Opened(**changes))
    return answer


@given(st.integers(0, 2 * len(BYTES)), st.binary(max_size=2 * len(BYTES)))
def test_only_the_bytes_that_come_next_are_taken(offset, data):
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:50])
    if offset == 50 and 1 <= len(data) <= len(BYTES) - 50:
        transfer.store(offset, data)
        assert transfer.received == 50 + len(data)
    else:
        with pytest.raises(errors.ServerError, match="comes next"):
            transfer.store(offset, data)
        assert transfer.received == 50


@given(st.lists(st.integers(1, len(BYTES) - 1), unique=True).map(sorted))
def test_a_result_cut_anywhere_is_put_together(cuts):
    buffer = ResultBuffer(JOB)
    transfer = Transfer(JOB, buffer, chunk_bytes=10)
    for start, stop in pairwise([0, *cuts, len(BYTES)]):
        request = transfer.begin().open
        assert (request.resume_from, request.evaluation_digest) == (start, "one" if start else "")
        assert not transfer.complete
        transfer.accept(opened())
        transfer.store(start, BYTES[start:stop])
        assert transfer.progressed
    transfer.end()
    np.testing.assert_array_equal(buffer.array, ARRAY)


@given(st.lists(st.integers(1, len(BYTES) // 4 - 1), unique=True).map(sorted), st.randoms())
def test_parts_of_a_result_land_in_one_array_whatever_their_order(cuts, chance):
    buffer = ResultBuffer(JOB)
    ends = [0, *(4 * cut for cut in cuts), len(BYTES)]
    parts = [range(first, stop) for first, stop in pairwise(ends)]
    chance.shuffle(parts)
    for number, part in enumerate(parts):
        transfer = Transfer(JOB, buffer, chunk_bytes=10, part=part)
        request = transfer.begin().open
        assert (request.resume_from, request.stop_before) == (part.start, part.stop)
        assert request.evaluation_digest == ("one" if number else "")
        transfer.accept(opened(read_from_byte=part.start, read_before_byte=part.stop))
        assert not transfer.complete
        transfer.note_sent(part.stop)
        assert transfer.sent == len(part)
        with pytest.raises(errors.ServerError, match="comes next"):
            transfer.store(part.start, bytes(len(part) + 1))
        transfer.store(part.start, BYTES[part.start : part.stop])
        transfer.end()
    np.testing.assert_array_equal(buffer.array, ARRAY)


def test_bytes_of_another_evaluation_are_not_joined():
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:8])
    transfer.begin()
    with pytest.raises(errors.EvaluationChangedError):
        transfer.accept(opened("another"))
    transfer.restart()
    request = transfer.begin().open
    assert (request.resume_from, request.evaluation_digest) == (0, "")
    transfer.accept(opened("another"))
    transfer.store(0, BYTES[:4])
    assert not transfer.progressed
    transfer.store(4, BYTES[4:])
    assert transfer.progressed
    assert transfer.complete
    buffer = ResultBuffer(JOB)
    parts = range(80), range(80, len(BYTES))
    one, other = (begun(buffer, part=part) for part in parts)
    one.accept(opened(read_before_byte=80))
    with pytest.raises(errors.EvaluationChangedError):
        other.accept(opened("another", read_from_byte=80, read_before_byte=len(BYTES)))


@pytest.mark.parametrize(
    "changes",
    [
        {"read_from_byte": len(BYTES) + 1},
        {"read_from_byte": -1},
        {"output": v1.TensorDescriptor(strides=[1, 6])},
        {"output": v1.TensorDescriptor(strides=[7])},
        {"output": v1.TensorDescriptor(sizes=[2])},
        {"output": v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT64)},
        *(
            {"part": range(8), "read_from_byte": first, "read_before_byte": stop}
            for first, stop in ((9, 8), (0, len(BYTES) + 1), (-1, 8), (0, -1))
        ),
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_is_the_servers_fault(changes):
    fields = {name: value for name, value in changes.items() if name != "part"}
    with pytest.raises(errors.ServerError):
        begun(part=changes.get("part", range(0))).accept(opened(**fields))


def test_too_little_is_the_servers_fault_too():
    with pytest.raises(errors.ServerError, match="before opened"):
        begun().store(0, BYTES)
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:-1])
    with pytest.raises(errors.ServerError, match="more are due"):
        transfer.end()
