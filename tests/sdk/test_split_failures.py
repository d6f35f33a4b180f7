"""Whatever befalls servers that share an evaluation, the bits are those of one, or the error is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, RetryPolicy, ops
from gradwire.errors import (
    AuthenticationError,
    DeadlineExceededError,
    InvalidRequestError,
    UnavailableError,
)
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.errors import UnknownFieldError
from gradwire_server.rpc import stream
from support.certificates import Papers, trusting
from support.clients import BRISK, ONCE, PROMPT, halved
from support.relay import Relay, relaying
from support.servers import (
    ALWAYS,
    DIFF_DST,
    SHAPE,
    Fleet,
    ServerThread,
    same_bits,
    serving,
    serving_process,
    wait_idle,
)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 20_000, 150_000])
def test_a_server_killed_amid_its_part_leaves_it_to_the_others(
    fleet: Fleet, expected: NDArray[Any], cut: int
) -> None:
    with (
        serving_process() as doomed,
        relaying(doomed.address, cuts=[cut, cut], on_cut=doomed.kill) as relay,
        Client(
            [relay.address, *fleet.targets], chunk_bytes=20_000, retry=PROMPT, **ALWAYS
        ) as client,
    ):
        out = np.zeros(SHAPE, np.float32)
        assert halved(client, DIFF_DST, out=out) is out
        assert doomed.process.poll() is not None
        same_bits(out, expected)
        same_bits(halved(client, DIFF_DST), expected)


def test_where_no_server_is_left_the_call_is_unavailable() -> None:
    with (
        Client(["127.0.0.1:1", "127.0.0.1:2"], retry=BRISK, **ALWAYS) as client,
        pytest.raises(UnavailableError),
    ):
        halved(client, DIFF_DST)


@pytest.mark.slow
def test_a_share_for_which_no_server_has_room_waits_for_another_to_end(
    expected: NDArray[Any],
) -> None:
    # Its tries are over, and it would count as stalled, long before the other share has ended.
    retry = RetryPolicy(initial_backoff_s=0.01, max_attempts=5)
    options: dict[str, Any] = {**ALWAYS, "retry": retry, "timeout_s": 2.0, "chunk_bytes": 10_000}
    with serving(max_streams=1, slab_bytes=1000) as narrow, relaying(narrow.address) as relay:
        relay.delay_s = 0.12
        with Client(["127.0.0.1:1", relay.address], **options) as client:
            same_bits(halved(client, DIFF_DST), expected)
        wait_idle(narrow)


def test_a_share_may_take_longer_than_an_answer(fleet: Fleet, expected: NDArray[Any]) -> None:
    options: dict[str, Any] = {**ALWAYS, "timeout_s": 2.0, "chunk_bytes": 20_000}
    with ExitStack() as stack:
        relays = [stack.enter_context(relaying(target)) for target in fleet.targets[1:]]
        for relay in relays:
            relay.delay_s = 0.12
        client = stack.enter_context(Client([one.address for one in relays], **options))
        began = time.monotonic()
        same_bits(halved(client, DIFF_DST), expected)
        assert time.monotonic() - began > options["timeout_s"]


def test_a_server_that_never_answers_leaves_its_share_to_the_others(
    fleet: Fleet, expected: NDArray[Any]
) -> None:
    with relaying(fleet.targets[0]) as silent:
        silent.swallow()
        targets = [silent.address, *fleet.targets]
        with Client(targets, timeout_s=4.0, **ALWAYS) as client:
            same_bits(halved(client, DIFF_DST), expected)
        nothing_runs(fleet)


def test_without_retries_no_share_waits_for_another(server: ServerThread) -> None:
    with (
        Client(["127.0.0.1:1", server.address], retry=ONCE, **ALWAYS) as client,
        pytest.raises(UnavailableError),
    ):
        halved(client, DIFF_DST)


def test_where_a_thread_cannot_start_none_is_left_that_writes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, shares = threading.Thread.start, iter(range(3))

    def exhausted(self: threading.Thread) -> None:
        if self.name == "gradwire-share" and next(shares) == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    with held(fleet) as relay, Client([relay.address, *fleet.targets], **ALWAYS) as client:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            halved(client, DIFF_DST)
        assert "gradwire-share" not in {thread.name for thread in threading.enumerate()}
        relay.let_go()
        nothing_runs(fleet)


def test_servers_that_compute_other_bits_do_not_share(
    fleet: Fleet, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["one", "another"])
    opened = stream.opened

    def disagreeing(output: Any, wants: range, *, digest: str, max_chunk_bytes: int) -> Any:
        said = next(digests, digest)
        return opened(output, wants, digest=said, max_chunk_bytes=max_chunk_bytes)

    monkeypatch.setattr(stream, "opened", disagreeing)
    with Client(fleet.targets, **ALWAYS) as client:
        same_bits(halved(client, DIFF_DST), expected)


def test_servers_of_a_release_without_parts_do_not_share(
    fleet: Fleet, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted_bytes = stream.wanted_bytes

    def older(header: Any, *others: Any) -> range:
        if header.stop_before:
            raise UnknownFieldError("open has field number 9, which this server does not know")
        return wanted_bytes(header, *others)

    monkeypatch.setattr(stream, "wanted_bytes", older)
    with Client(fleet.targets, **ALWAYS) as client:
        same_bits(halved(client, DIFF_DST), expected)


def test_a_refusal_is_that_of_one_server(fleet: Fleet) -> None:
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    with Client(fleet.targets, **ALWAYS) as client, pytest.raises(InvalidRequestError) as caught:
        client.evaluate(wrong, DIFF_DST, output_shape=SHAPE)
    assert caught.value.field == "operator.dml_resample_grad.scales"
    assert caught.value.request_id


def test_each_server_sees_token_and_certificate(expected: NDArray[Any], tmp_path: Path) -> None:
    papers, tokens = Papers(tmp_path), tmp_path / "tokens"
    token = add_token(tokens, name="evaluates", scopes=[Scope.EVALUATE])
    options: dict[str, Any] = {**ALWAYS, "credentials": trusting(papers.roots)}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(**papers.settings, tokens=str(tokens))) for _ in range(2)
        ]
        targets = [server.address for server in servers]
        with Client(targets, token=token, **options) as client:
            same_bits(halved(client, DIFF_DST), expected)
        with Client(targets, **options) as client, pytest.raises(AuthenticationError):
            halved(client, DIFF_DST)


def test_a_deadline_is_that_of_the_call_and_leaves_nothing_behind(fleet: Fleet) -> None:
    with held(fleet) as relay, Client([relay.address, *fleet.targets], **ALWAYS) as client:
        with pytest.raises(DeadlineExceededError, match=r"no result within timeout_s, 0\.5 s"):
            halved(client, DIFF_DST, timeout_s=0.5)
        relay.let_go()
        nothing_runs(fleet)


def test_a_part_that_stalls_ends_the_call(fleet: Fleet) -> None:
    options: dict[str, Any] = {**ALWAYS, "timeout_s": 0.5}
    with held(fleet) as relay, Client([relay.address, *fleet.targets], **options) as client:
        with pytest.raises(DeadlineExceededError, match=r"nothing moved for 0\.5 s"):
            halved(client, DIFF_DST)
        relay.let_go()
        nothing_runs(fleet)


def test_a_cancelled_task_ends_every_part(fleet: Fleet) -> None:
    async def work(target: str) -> None:
        async with AsyncClient([target, *fleet.targets], **ALWAYS) as client:
            under_way = asyncio.Event()

            def note(_sent: int, received: int) -> None:
                if received:
                    under_way.set()

            task = asyncio.ensure_future(halved(client, DIFF_DST, on_progress=note))
            await under_way.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with held(fleet) as relay:
        asyncio.run(work(relay.address))
        relay.let_go()
        nothing_runs(fleet)


@contextmanager
def held(fleet: Fleet) -> Generator[Relay]:
    """Lead to a server by a way on which its part gets stuck."""
    with relaying(fleet.targets[0]) as relay:
        relay.hold(after=100_000)
        yield relay


def nothing_runs(fleet: Fleet) -> None:
    """Assert that no server works on, and no thread of a shared evaluation is left."""
    for server in fleet.servers:
        wait_idle(server)
    names = [thread.name for thread in threading.enumerate()]
    assert not {"gradwire-split", "gradwire-share"} & set(names)
