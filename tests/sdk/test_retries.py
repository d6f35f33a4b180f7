"""Laws of when a failed call is tried again."""

from __future__ import annotations

import math
import pickle
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import RetryPolicy, errors
from gradwire._core.retries import RetryBudget, Tries, is_retryable

AWAY = errors.UnavailableError("away")
DRAWS = st.floats(0, 1)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    initial_s = draw(st.floats(0.001, 10))
    return RetryPolicy(
        max_attempts=draw(st.integers(1, 30)),
        initial_backoff_s=initial_s,
        max_backoff_s=draw(st.floats(initial_s, 100)),
        backoff_multiplier=draw(st.floats(1, 10)),
    )


def pause_s(tries: Tries, error: errors.GradwireError = AWAY, **options: Any) -> float:
    given: dict[str, Any] = {"progressed": False, "left_s": math.inf, "draw": 0.5, **options}
    return tries.pause_s(error, **given)


def pauses(tries: Tries, error: errors.GradwireError = AWAY, **options: Any) -> list[float]:
    """Fail until there is no further try and the error is raised, at most a thousand times."""
    taken: list[float] = []
    while len(taken) < 1000:
        try:
            taken.append(pause_s(tries, error, **options))
        except errors.GradwireError as raised:
            assert raised is error  # noqa: PT017 - whether it is raised is up to the test
            break
    return taken


@given(policies(), st.integers(1, 10_000), DRAWS)
def test_a_pause_lies_within_a_fifth_of_its_nominal_length_which_never_shrinks(
    policy: RetryPolicy, failures: int, draw: float
) -> None:
    nominal = policy.backoff_s(failures, draw=0.5)
    assert policy.initial_backoff_s <= nominal * (1 + 1e-9)
    assert nominal <= policy.max_backoff_s * (1 + 1e-9)
    assert 0.8 * nominal * (1 - 1e-9) <= policy.backoff_s(failures, draw=draw)
    assert policy.backoff_s(failures, draw=draw) <= 1.2 * nominal * (1 + 1e-9)
    assert nominal <= policy.backoff_s(failures + 1, draw=0.5)


def test_the_default_pauses_are_these() -> None:
    nominal = [RetryPolicy().backoff_s(failures, draw=0.5) for failures in range(1, 9)]
    assert nominal == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


@given(policies())
def test_there_are_as_many_tries_in_a_row_as_the_policy_allows(policy: RetryPolicy) -> None:
    assert len(pauses(Tries(policy, RetryBudget()))) == policy.max_attempts - 1


def test_progress_starts_the_count_anew_and_costs_the_budget_nothing() -> None:
    tries = Tries(RetryPolicy(max_attempts=2), RetryBudget())
    assert len(pauses(tries, progressed=True)) == 1000
    assert len(pauses(tries)) == 0
    tries = Tries(RetryPolicy(), RetryBudget())
    first, second = (pause_s(tries) for _ in range(2))
    assert second > first == pause_s(tries, progressed=True)


@given(st.floats(0, 1000), DRAWS, st.floats(0, 20))
def test_a_pause_is_as_long_as_the_server_asks_for_and_ends_before_the_deadline(
    retry_after_s: float, draw: float, left_s: float
) -> None:
    full = errors.OverloadedError("full", retry_after_s=retry_after_s)
    assert pause_s(Tries(RetryPolicy(), RetryBudget()), full, draw=draw) >= retry_after_s
    taken = pauses(Tries(RetryPolicy(), RetryBudget()), left_s=left_s)
    assert all(pause < left_s for pause in taken)


def test_a_client_whose_calls_mostly_fail_stops_repeating_them() -> None:
    budget = RetryBudget(max_tokens=10, token_ratio=0.5)
    patient = RetryPolicy(max_attempts=1000)
    assert len(pauses(Tries(patient, budget))) == 4
    assert len(pauses(Tries(patient, budget))) == 0
    for _ in range(20):
        Tries(patient, budget).succeed()
    assert len(pauses(Tries(patient, budget))) == 4
    # Refusals by a server that is well count an eighth.
    for error, tries in (
        (errors.OverloadedError("full"), 4),
        (errors.OverloadedError("full", retry_after_s=0.001), 39),
        (errors.CallCancelledError("the server stops"), 4),
    ):
        assert len(pauses(Tries(patient, RetryBudget(max_tokens=10)), error)) == tries


RETRYABLE = (errors.UnavailableError, errors.OverloadedError, errors.CallCancelledError)
FINAL = (
    *(errors.InvalidRequestError, errors.UnsupportedOperatorError, errors.LimitExceededError),
    *(errors.UseStreamError, errors.OutOfMemoryError, errors.DeadlineExceededError),
    errors.EvaluationChangedError,
)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_may_pass_is_repeated_and_a_stream_where_it_broke_mutely(*, streamed: bool) -> None:
    for error, expected in (
        *((kind(""), True) for kind in RETRYABLE),
        (errors.OverloadedError("", retry_after_s=1.0), True),
        (errors.ServerError(""), streamed),
        *((kind(""), False) for kind in FINAL),
        (errors.ServerError("", reason="INTERNAL"), False),
    ):
        assert is_retryable(error, streamed=streamed) is expected


def test_policies_and_errors_that_last_stay_so_in_another_process() -> None:
    error, policy = errors.UnavailableError(""), RetryPolicy(max_attempts=3, max_backoff_s=0.2)
    error.lasting = error.unreachable = True
    same_error, same_policy = pickle.loads(pickle.dumps((error, policy)))  # noqa: S301 - our own
    assert (same_error.lasting, same_error.unreachable, same_policy) == (True, True, policy)


@pytest.mark.parametrize(
    ("one_server", "lasting", "most"), [(True, True, 2), (False, True, 8), (True, False, 8)]
)
@pytest.mark.parametrize("attempts", [1, 8])
def test_what_waiting_does_not_mend_is_tried_twice_unless_there_are_other_servers(
    *, one_server: bool, lasting: bool, most: int, attempts: int
) -> None:
    error = errors.UnavailableError("")
    error.lasting = lasting
    tries = Tries(RetryPolicy(max_attempts=attempts), RetryBudget(), one_server=one_server)
    assert 1 + len(pauses(tries, error)) == min(most, attempts)


PATIENT = RetryPolicy(max_attempts=100)


@pytest.mark.parametrize(
    ("policy", "one_server", "reached"),
    [
        *((RetryPolicy(), True, False), (PATIENT, True, False)),
        *((PATIENT, True, True), (PATIENT, False, False)),
    ],
)
def test_a_single_server_that_never_answered_is_tried_for_three_seconds(
    monkeypatch: pytest.MonkeyPatch, policy: RetryPolicy, *, one_server: bool, reached: bool
) -> None:
    now, budget = [0.5], RetryBudget()
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("gradwire._core.retries.time", clock)
    refused = errors.UnavailableError("refused")
    refused.unreachable = True
    if reached:
        budget.succeed()
    tries = Tries(policy, budget, one_server=one_server)
    with suppress(errors.UnavailableError):
        while now[0] < 60:
            now[0] += pause_s(tries, refused)
    # The last try of the default policy is at the limit.
    assert now[0] == pytest.approx(3.5) if policy == RetryPolicy() else now[0] > 60
