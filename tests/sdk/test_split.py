"""Several servers that share an evaluation give the bits of one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dialect_tables import TABLES
from gradwire import Client, Timing, ops
from gradwire._core.evaluation import Shares, in_order, share_count
from gradwire._wire.requests import prepare
from gradwire.errors import InvalidRequestError
from gradwire_ray.listing import Listing
from gradwire_server import LocalClient
from gradwire_server.config.settings import Settings
from support.clients import BILINEAR, Face, halved
from support.oracles.dialect_table import Case
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import ALWAYS, DIFF_DST, SHAPE, Fleet, same_bits

CASES = st.one_of([table.cases for table in TABLES.values()])
DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]


@pytest.fixture(scope="module")
def spread(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.targets * 2, chunk_bytes=4099, **ALWAYS) as client:
        yield client


@pytest.fixture(scope="module")
def local() -> Iterator[LocalClient]:
    with LocalClient() as local:
        yield local


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
    options: dict[str, Any] = {**ALWAYS, "split_threshold_bytes": threshold, "chunk_bytes": 4099}
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


@pytest.mark.slow
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
        (4, 4, 1, 4),
        (0, 3, 0, 1),
    ],
)
def test_a_part_has_half_the_threshold_or_more(
    bulk: int, servers: int, threshold: int, count: int
) -> None:
    assert share_count(bulk, servers=servers, threshold_bytes=threshold) == count


def test_a_split_stands_as_long_as_the_share_that_has_waited_longest() -> None:
    job = prepare(BILINEAR, DIFF_DST, output_shape=SHAPE, out=None)
    shares = Shares(job, 3, chunk_bytes=999)
    parts = shares.cut()
    for number, part in enumerate(parts, 1):
        part.moved_at = float(number)
    assert shares.moved_at == 1.0
    parts[0].wait(waits=True)
    assert shares.moved_at == 2.0


def test_the_size_of_a_result_is_asked_for_with_one_byte_of_it() -> None:
    job = prepare(BILINEAR, DIFF_DST, output_shape=None, out=None)
    question = Shares(job, 3, chunk_bytes=999).ask()
    assert question is not None
    header = question.begin().open
    assert (header.resume_from, header.stop_before) == (0, 1)


def test_an_input_with_broadcast_axes_stays_as_small_as_it_is() -> None:
    small = np.broadcast_to(DIFF_DST[:, :1], DIFF_DST.shape)
    job = prepare(BILINEAR, small, output_shape=SHAPE, out=None)
    assert in_order(job).input_bytes == job.input_bytes < small.nbytes


@pytest.mark.slow
def test_only_what_is_above_the_threshold_is_shared(fleet: Fleet, expected: NDArray[Any]) -> None:
    asked: list[int] = []

    def note(timing: Timing) -> None:
        asked.append(timing.tries)

    for threshold in (DIFF_DST.nbytes, DIFF_DST.nbytes - 1, DIFF_DST.nbytes // 3, 0):
        options: dict[str, Any] = {**ALWAYS, "split_threshold_bytes": threshold}
        with Client(fleet.targets, **options) as client:
            result = halved(client, DIFF_DST, on_timing=note)
        same_bits(result, expected)
    alone: dict[str, Any] = {**ALWAYS, "split": False}
    with Client(fleet.targets, **alone) as client:
        halved(client, DIFF_DST, on_timing=note)
    assert asked == [1, 2, 3, 3, 1]


def test_each_server_reads_its_part_and_little_more(fleet: Fleet, expected: NDArray[Any]) -> None:
    with ExitStack() as stack:
        relays = [stack.enter_context(relaying(target)) for target in fleet.targets]
        client = stack.enter_context(Client([relay.address for relay in relays], **ALWAYS))
        result = halved(client, DIFF_DST)
        sent = [relay.carried_bytes for relay in relays]
    same_bits(result, expected)
    share = DIFF_DST.nbytes / len(relays)
    assert all(0.95 * share < each < 1.1 * share for each in sent), sent


def test_all_replicas_of_a_list_share_and_those_that_come_join_them(
    fleet: Fleet, expected: NDArray[Any]
) -> None:
    addresses = fleet.targets[:1]
    listing = Listing(
        "some", host="127.0.0.1", port=0, settings=Settings(), addresses=lambda: addresses
    )
    tries: list[int] = []

    def note(timing: Timing) -> None:
        tries.append(timing.tries)

    def evaluate() -> int:
        result = halved(client, DIFF_DST, on_timing=note)
        same_bits(result, expected)
        return tries[-1]

    try:
        with Client(listing.url, **ALWAYS) as client:
            assert evaluate() == 1
            addresses += fleet.targets[1:]
            wait_until(lambda: evaluate() == len(fleet.targets))
    finally:
        listing.close()


def test_progress_and_calls_at_once_see_one_call(
    fleet: Fleet, face: Face, expected: NDArray[Any]
) -> None:
    reports: list[tuple[int, int]] = []

    def note(sent_bytes: int, received_bytes: int) -> None:
        reports.append((sent_bytes, received_bytes))

    with face(fleet.targets, chunk_bytes=20_000, **ALWAYS) as client, ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(halved, client, DIFF_DST, on_progress=note),
            pool.submit(halved, client, DIFF_DST, out=np.empty(SHAPE, np.float32)),
        ]
        for call in calls:
            same_bits(call.result(), expected)
    assert reports == sorted(reports)
    assert reports[-1] == (DIFF_DST.nbytes, expected.nbytes)
