"""Whatever breaks under evaluate_many, every item has its result or the right error."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

from gradwire import Client, Item, RetryPolicy
from gradwire.errors import (
    CallCancelledError,
    DeadlineExceededError,
    OverloadedError,
    UnavailableError,
)
from gradwire_server.errors import RETRY_AFTER_S
from support.clients import BRISK, COPY, PROMPT, Collect, Face, Outcome, blocking, both_clients
from support.raw_calls import ManyCall, named, summed, wait_until
from support.relay import Relay, older, relaying, skewed
from support.servers import ServerThread, served_many, serving, serving_process

# One connection, so that the relay sees every one there is.
PATIENT: dict[str, Any] = {"connections": 1, "retry": PROMPT}

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def numbered(count: int, size: int = 16) -> Iterator[Item]:
    """Make items whose results tell their places."""
    for number in range(count):
        yield Item(COPY, np.full((size,), number, np.float32), (size,))


def check(outcomes: list[tuple[int, Outcome]], count: int) -> None:
    """Assert that every result came once, in order, with the bits that were sent."""
    assert [index for index, _ in outcomes] == list(range(count))
    for index, result in outcomes:
        assert isinstance(result, np.ndarray), result
        assert (result == index).all()


@pytest.mark.slow
@both_clients
@pytest.mark.parametrize(
    "cuts", [(1,), (300,), (2_000,), (9_000, 1, 1, 20_000, 300, 5_000)], ids=str
)
def test_a_stream_that_is_cut_anywhere_goes_on_where_it_stopped(
    server: ServerThread, collect: Collect, cuts: tuple[int, ...]
) -> None:
    with relaying(server.address, cuts=cuts) as relay:
        check(collect(relay.address, numbered(400), options=PATIENT), 400)
        assert relay.connections == len(cuts) + 1


@both_clients
def test_tries_are_counted_anew_after_every_answer(server: ServerThread, collect: Collect) -> None:
    cuts = (4_000,) * 8
    options = {"retry": RetryPolicy(initial_backoff_s=0.15, max_backoff_s=0.15, max_attempts=3)}
    with relaying(server.address, cuts=cuts) as relay:
        check(collect(relay.address, numbered(600), options=options), 600)
        assert relay.connections == len(cuts) + 1


def test_a_server_killed_and_started_again_is_sent_what_it_has_not_answered() -> None:
    with serving_process() as server:

        def restart() -> None:
            server.kill()
            server.start()

        with relaying(server.address, cuts=(5_000,), on_cut=restart) as relay:
            check(blocking(relay.address, numbered(300)), 300)
            assert relay.connections > 1


@pytest.mark.slow
@both_clients
def test_a_server_that_drains_hands_over_to_another(server: ServerThread, collect: Collect) -> None:
    old = ServerThread()
    old.start()
    stopping: list[threading.Thread] = []
    with relaying(old.address) as relay:

        def hand_over() -> None:
            old.stop()
            relay.lead_to(server.address)

        def note(index: int) -> None:
            if index == 30:
                stopping.append(threading.Thread(target=hand_over))
                stopping[0].start()

        check(collect(relay.address, numbered(3000), options=PATIENT, on_outcome=note), 3000)
        stopping[0].join()


@both_clients
def test_silence_ends_what_is_in_flight_and_the_next_items_go_on(
    relay: Relay, collect: Collect
) -> None:
    def note(index: int) -> None:
        if index == 4:
            relay.hold()
        if index == 10:
            relay.let_go()

    outcomes = collect(relay.address, numbered(30), on_outcome=note, max_in_flight=3, timeout_s=1.0)
    assert [index for index, _ in outcomes] == list(range(30))
    failed = {index for index, outcome in outcomes if isinstance(outcome, Exception)}
    assert failed
    assert failed <= set(range(5, 14))
    for index, outcome in outcomes:
        if index in failed:
            assert isinstance(outcome, DeadlineExceededError)
            assert str(outcome).startswith("no answer for 1.0 s, while ")
        else:
            assert (np.asarray(outcome) == index).all()


@both_clients
@pytest.mark.parametrize("slow", ["items", "results"])
def test_a_stream_that_the_server_ends_meanwhile_is_opened_again(
    collect: Collect, slow: str
) -> None:
    def items() -> Iterator[Item]:
        for item in numbered(4):
            if slow == "items":
                time.sleep(0.25)
            yield item

    def note(_index: int) -> None:
        if slow == "results":
            time.sleep(0.25)

    with serving(stall_timeout_s=0.1) as server:
        check(collect(server.address, items(), on_outcome=note, max_in_flight=2), 4)


@contextmanager
def full_server() -> Generator[tuple[ServerThread, ManyCall]]:
    """Run a server whose memory a call has taken."""
    with served_many(max_memory_bytes=1) as (server, _, other):
        other.send(named(summed(1 << 18), "long"))  # hours of work
        wait_until(lambda: server.server.service.admission.memory_bytes)
        yield server, other


@both_clients
def test_items_that_a_full_server_refuses_are_sent_again(collect: Collect) -> None:
    with full_server() as (server, other):
        threading.Timer(0.3, other.call.cancel).start()
        check(collect(server.address, numbered(20), options=PATIENT), 20)


@both_clients
def test_an_overload_that_lasts_is_told_with_the_time_to_wait(collect: Collect) -> None:
    with full_server() as (server, _):
        outcomes = collect(server.address, numbered(3), options={"retry": BRISK})
    assert len(outcomes) == 3
    for index, error in outcomes:
        assert isinstance(error, OverloadedError)
        assert error.retry_after_s == RETRY_AFTER_S
        assert (error.request_id or "").endswith(f"-{index}")


@both_clients
def test_more_callers_than_streams_all_get_their_results(collect: Collect) -> None:
    with serving(max_streams=1) as server, ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(collect, server.address, numbered(50), options=PATIENT) for _ in range(6)
        ]
        for call in calls:
            check(call.result(), 50)


@both_clients
def test_a_server_that_is_not_there_fails_every_item(nobody: str, collect: Collect) -> None:
    outcomes = collect(nobody, numbered(5), options={"retry": BRISK})
    assert [type(outcome) for _, outcome in outcomes] == [UnavailableError] * 5
    for index, (_, outcome) in enumerate(outcomes):
        assert getattr(outcome, "__notes__", None) == [f"item {index} of evaluate_many"]


@both_clients
def test_a_server_without_the_method_is_called_once_for_each_item(
    server: ServerThread, collect: Collect
) -> None:
    broadcast = np.broadcast_to(np.float32(100), (16,))
    items = [*numbered(100), Item(COPY, broadcast, (16,))]
    with skewed(server.address, older) as old:
        check(collect(old, items), 101)


def test_an_interrupt_loses_nothing(relay: Relay) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise ZeroDivisionError

    with Client(relay.address) as client:
        results = client.evaluate_many(numbered(100))
        before = list(itertools.islice(results, 10))
        relay.hold()
        handler = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ZeroDivisionError):
            before.extend(results)
        signal.signal(signal.SIGALRM, handler)
        relay.let_go()
        after = [*before, *results]
    check(list(enumerate(after)), 100)


def test_a_client_closed_by_another_thread_ends_what_is_in_flight(relay: Relay, face: Face) -> None:
    client = face(relay.address)
    results = client.evaluate_many(numbered(100))
    next(results)
    relay.hold()
    threading.Timer(0.2, client.close).start()
    with pytest.raises(CallCancelledError):
        for _ in results:
            pass
