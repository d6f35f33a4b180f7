"""A connection that does not come about: how long a client tries, and what it tells."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gradwire import (
    AsyncClient,
    Client,
    GradwireError,
    InvalidRequestError,
    RetryPolicy,
    UnavailableError,
    ops,
)
from gradwire._core.retries import RetryBudget, Tries
from gradwire._transport.unary import Patience
from papers import Papers
from serving import serving

COPY = ops.DmlResample(interpolation_mode="linear")
ARRAYS = {"unary": np.ones((4, 4), np.float32), "stream": np.ones((512, 512), np.float32)}
KINDS = pytest.mark.parametrize("kind", [Client, AsyncClient])
CALLS = pytest.mark.parametrize("call", list(ARRAYS))


class Counting(RetryPolicy):
    """Notes each failure, and pauses for a moment."""

    failed: ClassVar[list[int]] = []

    def backoff_s(self, failures: int, *, draw: float) -> float:
        """Note the number, and pause as usual."""
        self.failed.append(failures)
        return super().backoff_s(failures, draw=draw)


POLICY = Counting(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01)


@pytest.fixture(autouse=True)
def _count_anew() -> None:  # pyright: ignore[reportUnusedFunction]
    Counting.failed.clear()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Name an address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def error_of(
    kind: type[Client | AsyncClient], target: str, call: str = "unary", **options: Any
) -> GradwireError:
    """Return what evaluate() raises."""
    array = ARRAYS[call]
    client = kind(target, **options)

    async def call_and_close(awaited: AsyncClient) -> None:
        async with awaited:
            await awaited.evaluate(COPY, array, output_shape=array.shape)

    try:
        if isinstance(client, AsyncClient):
            asyncio.run(call_and_close(client))
        else:
            with client:
                client.evaluate(COPY, array, output_shape=array.shape)
    except GradwireError as error:
        return error
    raise AssertionError("the call succeeded")


@KINDS
@CALLS
@pytest.mark.parametrize(("connect_timeout_s", "tries"), [(None, 4), (3600.0, 4), (0.005, 1)])
def test_connecting_is_tried_for_as_long_as_the_client_is_told(
    nobody: str,
    kind: type[Client | AsyncClient],
    call: str,
    connect_timeout_s: float | None,
    tries: int,
) -> None:
    error = error_of(kind, nobody, call, retry=POLICY, connect_timeout_s=connect_timeout_s)
    assert isinstance(error, UnavailableError)
    assert error.unreachable
    assert pickle.loads(pickle.dumps(error)).unreachable  # noqa: S301 - dumped right here
    assert len(Counting.failed) == tries


def test_a_server_that_answers_is_tried_as_often_as_ever() -> None:
    tries = Tries(POLICY, RetryBudget(), connect_timeout_s=1e-9)
    answers = UnavailableError("it starts", retry_after_s=1.0)
    unreachable = copy.copy(answers)
    unreachable.unreachable = True
    for _ in range(POLICY.max_attempts - 1):
        assert tries.pause_s(answers, progressed=False, left_s=math.inf, draw=0.5) == 1.0
    with pytest.raises(UnavailableError):
        Tries(POLICY, RetryBudget(), connect_timeout_s=1e-9).pause_s(
            unreachable, progressed=False, left_s=math.inf, draw=0.5
        )


@KINDS
def test_an_attempt_to_connect_takes_no_longer(kind: type[Client | AsyncClient]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        # By itself gRPC waits 20 s for a server that takes a connection and says nothing.
        error = error_of(kind, target, connect_timeout_s=0.2, timeout_s=10, retry=POLICY)
    assert isinstance(error, UnavailableError)


@KINDS
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1"])
def test_a_time_that_is_none_is_refused(kind: type[Client | AsyncClient], value: Any) -> None:
    with pytest.raises(ValueError, match="connect_timeout_s is "):
        kind("127.0.0.1:1", connect_timeout_s=value)


@KINDS
@CALLS
def test_tls_is_told_of_whichever_address_of_a_name_has_the_server(
    kind: type[Client | AsyncClient], call: str, tmp_path: Path
) -> None:
    with serving(**Papers(tmp_path).settings) as server:
        error = error_of(kind, f"localhost:{server.server.port}", call, retry=POLICY)
    assert isinstance(error, UnavailableError)
    # gRPC tells of the address that failed last, which may be another one.
    assert "wants TLS" in str(error)


@KINDS
@pytest.mark.parametrize("at", range(2))
def test_tls_is_told_of_whichever_of_several_targets_has_the_server(
    kind: type[Client | AsyncClient], nobody: str, at: int, tmp_path: Path
) -> None:
    with serving(**Papers(tmp_path).settings) as server:
        targets = [nobody]
        targets.insert(at, server.address)
        error = error_of(kind, ",".join(targets), retry=POLICY)
    assert "wants TLS" in str(error)


@KINDS
@pytest.mark.parametrize("waits_s", [0.1, 0.3, 0.5])
def test_waiting_tells_of_tls_whichever_of_several_targets_answers_last(
    nobody: str, kind: type[Client | AsyncClient], waits_s: float, tmp_path: Path
) -> None:
    async def wait_and_close(awaited: AsyncClient) -> None:
        async with awaited:
            await awaited.wait_ready(waits_s)

    def wait(client: Client | AsyncClient) -> None:
        if isinstance(client, AsyncClient):
            asyncio.run(wait_and_close(client))
        else:
            with client:
                client.wait_ready(waits_s)

    with serving(**Papers(tmp_path).settings) as server:
        client = kind(f"{server.address},{nobody}")
        with pytest.raises(UnavailableError, match="wants TLS"):
            wait(client)


@pytest.mark.parametrize("unreachable", [False, True])
def test_waiting_in_vain_is_unreachable_where_the_last_answer_was(*, unreachable: bool) -> None:
    last = UnavailableError("refused")
    last.unreachable = unreachable
    with pytest.raises(UnavailableError, match="refused") as late:
        Patience(0.01).pause_s(last)
    assert late.value.unreachable is unreachable


@KINDS
@CALLS
def test_where_nobody_listens_the_error_says_what_to_do(
    nobody: str, kind: type[Client | AsyncClient], call: str
) -> None:
    error = error_of(kind, nobody, call, retry=RetryPolicy(max_attempts=1))
    assert str(error).startswith(
        "no server listens at target; start one with `gradwire-server`, or give another target: "
    )
    assert nobody in str(error)


def test_where_there_is_no_socket_the_error_says_what_to_do(tmp_path: Path) -> None:
    error = error_of(Client, f"unix:{tmp_path}/none", retry=RetryPolicy(max_attempts=1))
    assert str(error).startswith("no server listens at target; start one with `gradwire-server`")


def test_a_name_that_is_not_known_is_unreachable() -> None:
    error = error_of(Client, "nothing.invalid:1", retry=POLICY, connect_timeout_s=0.005)
    assert isinstance(error, UnavailableError)
    assert error.unreachable
    assert str(error).startswith("the host in target is not known; give another name, or its IP")
    assert not isinstance(error, InvalidRequestError)
