"""Several servers that share an evaluation give the bits of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dialect_table import Case
from dialect_tables import TABLES
from gradwire import (
    AsyncClient,
    AuthenticationError,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    RetryPolicy,
    Timing,
    UnavailableError,
    ops,
)
from gradwire._split import share_count
from gradwire_server import LocalClient, ranges
from gradwire_server.errors import UnknownFieldError
from gradwire_server.tokens import Scope, add_token
from papers import Papers, trusting
from raw_calls import wait_idle
from relay import Relay, relaying
from serving import ServerThread, serving, serving_process

CASES = st.one_of([table.cases for table in TABLES.values()])
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
SHAPE = (1, 3, 256, 256)
DIFF_DST = np.random.default_rng(0).normal(size=(1, 3, 512, 512)).astype(np.float32)
PROMPT = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=40)
# Every tensor is cut, into as many parts as there are targets or elements.
ALWAYS: dict[str, Any] = {"split": True, "split_threshold_bytes": 0, "stream_threshold_bytes": 0}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that walk a tensor in steps of different sizes."""

    servers: tuple[ServerThread, ...]

    @property
    def targets(self) -> list[str]:
        """Their addresses."""
        return [server.address for server in self.servers]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        slabs = (2 << 20, 1000, 60)
        yield Fleet(tuple(stack.enter_context(serving(slab_bytes=slab)) for slab in slabs))


@pytest.fixture(scope="module")
def spread(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.targets * 2, chunk_bytes=999, **ALWAYS) as client:
        yield client


@pytest.fixture(scope="module")
def local() -> Iterator[LocalClient]:
    with LocalClient() as local:
        yield local


@pytest.fixture(scope="module")
def expected(local: LocalClient) -> NDArray[Any]:
    return local.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)


def same_bits(result: NDArray[Any], expected: NDArray[Any]) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of evaluate(); output_shape is None where it is to be inferred."""

    operator: ops.Operator
    array: NDArray[Any]
    output_shape: tuple[int, ...] | None


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Make a call of any dialect, on any type, that may be one to refuse."""
    case: Case = draw(CASES)
    dtype = draw(st.sampled_from(DTYPES))
    backward = draw(st.booleans())
    operator = case.pair.gradient if backward else case.pair.forward
    source, shape = (case.result, case.source) if backward else (case.source, case.result)
    array = np.random.default_rng(0).normal(size=source).astype(dtype)
    return Call(operator, array, shape if draw(st.booleans()) else None)


@settings(max_examples=100, deadline=None)
@given(call=calls(), threshold=st.sampled_from([0, 64, 500]))
def test_every_dialect_has_the_bits_of_one_server(
    fleet: Fleet, local: LocalClient, call: Call, threshold: int
) -> None:
    refusal = None
    try:
        whole = local.evaluate(call.operator, call.array, output_shape=call.output_shape)
    except InvalidRequestError as error:
        refusal, whole = error, np.empty(0)
    options: dict[str, Any] = {**ALWAYS, "split_threshold_bytes": threshold, "chunk_bytes": 999}
    with Client(fleet.targets * 2, **options) as client:
        if refusal is None:
            result = client.evaluate(call.operator, call.array, output_shape=call.output_shape)
            same_bits(result, whole)
            return
        with pytest.raises(InvalidRequestError) as caught:
            client.evaluate(call.operator, call.array, output_shape=call.output_shape)
    assert (caught.value.field, str(caught.value)) == (refusal.field, str(refusal))


@st.composite
def layouts(draw: st.DrawFn, *, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Make an input with strides of any kind, some of them 0, and an out."""
    order, out_order = (draw(st.permutations(range(4))) for _ in range(2))
    broadcast = draw(st.sets(st.integers(0, 3)))
    step = draw(st.sampled_from([1, -1, 2]))
    held = [sizes[axis] * abs(step) for axis in order]
    values = np.random.default_rng(1).normal(size=held).astype(np.float32)
    array = values.transpose(np.argsort(order))[(slice(None, None, step),) * 4]
    ones = tuple(slice(0, 1) if axis in broadcast else slice(None) for axis in range(4))
    out = np.zeros([shape[axis] for axis in out_order], np.float32)
    return np.broadcast_to(array[ones], sizes), out.transpose(np.argsort(out_order))


@settings(max_examples=60, deadline=None)
@given(layout=layouts(sizes=(2, 3, 12, 10), shape=(2, 3, 5, 7)))
def test_any_strides_of_input_and_out_have_the_bits_of_one_server(
    spread: Client, local: LocalClient, layout: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    array, out = layout
    assert spread.evaluate(BILINEAR, array, out=out) is out
    expected = local.evaluate(BILINEAR, array, output_shape=out.shape)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("bulk", "servers", "threshold", "count"),
    [
        (100, 4, 100, 1),
        (101, 4, 100, 2),
        (200, 4, 100, 2),
        (201, 4, 100, 3),
        (1000, 4, 100, 4),
        (1000, 1, 100, 1),
        (5, 3, 0, 3),
        (0, 3, 0, 1),
    ],
)
def test_a_part_has_half_the_threshold_or_more(
    bulk: int, servers: int, threshold: int, count: int
) -> None:
    assert share_count(bulk, servers=servers, threshold_bytes=threshold) == count


def test_only_what_is_above_the_threshold_is_shared(fleet: Fleet, expected: NDArray[Any]) -> None:
    asked: list[int] = []

    def note(timing: Timing) -> None:
        asked.append(timing.tries)

    for threshold in (DIFF_DST.nbytes, DIFF_DST.nbytes - 1, DIFF_DST.nbytes // 3, 0):
        options: dict[str, Any] = {**ALWAYS, "split_threshold_bytes": threshold}
        with Client(fleet.targets, **options) as client:
            result = client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE, on_timing=note)
        same_bits(result, expected)
    alone: dict[str, Any] = {**ALWAYS, "split": False}
    with Client(fleet.targets, **alone) as client:
        client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE, on_timing=note)
    assert asked == [1, 2, 3, 3, 1]


def test_each_server_reads_its_part_and_little_more(fleet: Fleet, expected: NDArray[Any]) -> None:
    with ExitStack() as stack:
        relays = [stack.enter_context(relaying(target)) for target in fleet.targets]
        client = stack.enter_context(Client([relay.address for relay in relays], **ALWAYS))
        result = client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
        sent = [relay.carried_bytes for relay in relays]
    same_bits(result, expected)
    share = DIFF_DST.nbytes / len(relays)
    assert all(0.95 * share < each < 1.1 * share for each in sent), sent


def test_progress_and_tasks_of_asyncio_see_one_call(fleet: Fleet, expected: NDArray[Any]) -> None:
    reports: list[tuple[int, int]] = []

    async def work() -> list[NDArray[Any]]:
        async with AsyncClient(fleet.targets, chunk_bytes=20_000, **ALWAYS) as client:
            calls = [
                client.evaluate(
                    BILINEAR,
                    DIFF_DST,
                    output_shape=SHAPE,
                    on_progress=lambda sent, received: reports.append((sent, received)),
                ),
                client.evaluate(BILINEAR, DIFF_DST, out=np.empty(SHAPE, np.float32)),
            ]
            return await asyncio.gather(*calls)

    for result in asyncio.run(work()):
        same_bits(result, expected)
    assert reports == sorted(reports)
    assert reports[-1] == (DIFF_DST.nbytes, expected.nbytes)


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
        assert client.evaluate(BILINEAR, DIFF_DST, out=out) is out
        assert doomed.process.poll() is not None
        same_bits(out, expected)
        same_bits(client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE), expected)


def test_where_no_server_is_left_the_call_is_unavailable() -> None:
    retry = RetryPolicy(initial_backoff_s=0.01, max_attempts=3)
    with (
        Client(["127.0.0.1:1", "127.0.0.1:2"], retry=retry, **ALWAYS) as client,
        pytest.raises(UnavailableError),
    ):
        client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)


def test_servers_that_compute_other_bits_do_not_share(
    fleet: Fleet, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["one", "another"])
    opened = ranges.opened

    def disagreeing(output: Any, wants: range, *, digest: str, max_chunk_bytes: int) -> Any:
        said = next(digests, digest)
        return opened(output, wants, digest=said, max_chunk_bytes=max_chunk_bytes)

    monkeypatch.setattr(ranges, "opened", disagreeing)
    with Client(fleet.targets, **ALWAYS) as client:
        result = client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
    same_bits(result, expected)


def test_servers_of_a_release_without_parts_do_not_share(
    fleet: Fleet, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted_bytes = ranges.wanted_bytes

    def older(header: Any, *others: Any) -> range:
        if header.stop_before:
            raise UnknownFieldError("open has field number 9, which this server does not know")
        return wanted_bytes(header, *others)

    monkeypatch.setattr(ranges, "wanted_bytes", older)
    with Client(fleet.targets, **ALWAYS) as client:
        result = client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
    same_bits(result, expected)


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
            same_bits(client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE), expected)
        with Client(targets, **options) as client, pytest.raises(AuthenticationError):
            client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)


def test_a_deadline_is_that_of_the_call_and_leaves_nothing_behind(fleet: Fleet) -> None:
    with held(fleet) as relay, Client([relay.address, *fleet.targets], **ALWAYS) as client:
        with pytest.raises(DeadlineExceededError, match=r"no result within timeout_s, 0\.5 s"):
            client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE, timeout_s=0.5)
        relay.let_go()
        nothing_runs(fleet)


def test_a_part_that_stalls_ends_the_call(fleet: Fleet) -> None:
    options: dict[str, Any] = {**ALWAYS, "timeout_s": 0.5}
    with held(fleet) as relay, Client([relay.address, *fleet.targets], **options) as client:
        with pytest.raises(DeadlineExceededError, match=r"nothing moved for 0\.5 s"):
            client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
        relay.let_go()
        nothing_runs(fleet)


def test_a_cancelled_task_ends_every_part(fleet: Fleet) -> None:
    async def work(target: str) -> None:
        async with AsyncClient([target, *fleet.targets], **ALWAYS) as client:
            under_way = asyncio.Event()
            task = asyncio.ensure_future(
                client.evaluate(
                    BILINEAR,
                    DIFF_DST,
                    output_shape=SHAPE,
                    on_progress=lambda _, received: under_way.set() if received else None,
                )
            )
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
