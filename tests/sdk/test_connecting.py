"""A connection that does not come about: how long a client tries, and what it tells."""

from __future__ import annotations

import copy
import math
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire._core.retries import RetryBudget, Tries
from gradwire._transport.unary import Patience
from gradwire._wire.statuses import no_server
from gradwire.errors import GradwireError, InvalidRequestError, UnavailableError
from support.clients import LARGE, ONCE, SMALL, Counting, Face, copied
from support.papers import Papers, trusting
from support.serving import serving

ARRAYS = {"unary": SMALL, "stream": LARGE}
CALLS = pytest.mark.parametrize("call", list(ARRAYS))
POLICY = Counting(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01)


@pytest.fixture(autouse=True)
def _count_anew() -> None:  # pyright: ignore[reportUnusedFunction]
    Counting.failed.clear()


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(**Papers(tmp_path_factory.mktemp("papers")).settings) as server:
        assert server.server.port
        yield server.server.port


def error_of(face: Face, target: str, call: str = "unary", **options: Any) -> GradwireError:
    with face(target, **options) as client, pytest.raises(GradwireError) as caught:
        copied(client, ARRAYS[call])
    return caught.value


@CALLS
@pytest.mark.parametrize(("connect_timeout_s", "tries"), [(None, 4), (3600.0, 4), (0.005, 1)])
def test_connecting_is_tried_for_as_long_as_the_client_is_told(
    nobody: str,
    face: Face,
    call: str,
    connect_timeout_s: float | None,
    tries: int,
) -> None:
    error = error_of(face, nobody, call, retry=POLICY, connect_timeout_s=connect_timeout_s)
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


def test_an_attempt_to_connect_takes_no_longer(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        # By itself gRPC waits 20 s for a server that takes a connection and says nothing.
        error = error_of(face, target, connect_timeout_s=0.2, timeout_s=10, retry=POLICY)
    assert isinstance(error, UnavailableError)


@CALLS
def test_tls_is_told_of_whichever_address_of_a_name_has_the_server(
    face: Face, call: str, private: int
) -> None:
    error = error_of(face, f"localhost:{private}", call, retry=POLICY)
    assert isinstance(error, UnavailableError)
    # gRPC tells of the address that failed last, which may be another one.
    assert "requires TLS" in str(error)


@pytest.mark.parametrize("at", range(2))
def test_tls_is_told_of_whichever_of_several_targets_has_the_server(
    face: Face, nobody: str, at: int, private: int
) -> None:
    targets = [nobody]
    targets.insert(at, f"127.0.0.1:{private}")
    assert "requires TLS" in str(error_of(face, ",".join(targets), retry=POLICY))


@pytest.mark.parametrize("waits_s", [0.1, 0.3, 0.5])
def test_waiting_tells_of_tls_whichever_of_several_targets_answers_last(
    nobody: str, face: Face, waits_s: float, private: int
) -> None:
    with (
        face(f"127.0.0.1:{private},{nobody}") as client,
        pytest.raises(UnavailableError, match="requires TLS"),
    ):
        client.wait_ready(waits_s)


@pytest.mark.parametrize("unreachable", [False, True])
def test_waiting_in_vain_is_unreachable_where_the_last_answer_was(*, unreachable: bool) -> None:
    last = UnavailableError("refused")
    last.unreachable = unreachable
    with pytest.raises(UnavailableError, match="refused") as late:
        Patience(0.01).pause_s(last)
    assert late.value.unreachable is unreachable


@CALLS
def test_where_nobody_listens_the_error_says_what_to_do(nobody: str, face: Face, call: str) -> None:
    error = error_of(face, nobody, call, retry=ONCE)
    assert str(error).startswith(f"{no_server(nobody)}: ")
    assert f"`gradwire-server --address {nobody}`" in str(error)


def test_where_there_is_no_socket_the_error_says_what_to_do(face: Face, tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/none"
    assert str(error_of(face, target, retry=ONCE)).startswith(f"{no_server(target)}: ")


@pytest.mark.parametrize("address", ["10.0.0.1:50051", "127.0.0.1:1,127.0.0.1:2"])
def test_a_command_is_named_only_for_one_address_of_this_machine(address: str) -> None:
    assert no_server(address) == (
        f"no server listens at {address}; start one there, or give another target"
    )


@pytest.mark.parametrize("private", [False, True])
def test_a_port_of_http_is_told_from_one_of_grpc(
    face: Face, tmp_path: Path, *, private: bool
) -> None:
    papers = Papers(tmp_path)
    settings = papers.settings if private else {}
    credentials = trusting(papers.roots) if private else None
    with serving(http_port="0", **settings) as server:
        error = error_of(face, server.http_address, retry=ONCE, credentials=credentials)
    assert isinstance(error, UnavailableError)
    assert str(error).startswith("the server at this port does not speak gRPC; ")


def test_a_name_that_is_not_known_is_unreachable(face: Face) -> None:
    error = error_of(face, "nothing.invalid:1", retry=POLICY, connect_timeout_s=0.005)
    assert isinstance(error, UnavailableError)
    assert error.unreachable
    assert str(error).startswith("the host name in target cannot be resolved; ")
    assert not isinstance(error, InvalidRequestError)
