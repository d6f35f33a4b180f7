"""Several servers that share an evaluation give the bits of one, or its error."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import AsyncClient, Client, RetryPolicy, errors
from gradwire._core.evaluation import Shares, in_order, share_count
from gradwire._wire.requests import prepare
from gradwire_server import LocalClient
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.engine import Prepared
from support.certificates import Papers, trusting
from support.clients import BILINEAR, PROMPT, Counting, halved
from support.examples import examples
from support.oracles.dialect_tables import TABLES
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import List, same_bytes, serving, wait_idle

CASES = st.one_of([table.cases for table in TABLES.values()])
SHAPE = (1, 3, 128, 128)
DIFF_DST = np.random.default_rng(0).normal(size=(1, 3, 256, 256)).astype(np.float32)
# Every tensor is cut, into as many parts as there are targets or elements.
ALWAYS = {"split": True, "split_threshold_bytes": 0, "stream_threshold_bytes": 0}


@pytest.fixture(scope="module")
def local():
    with LocalClient() as local:
        yield local


@pytest.fixture(scope="module")
def expected(local):
    return halved(local, DIFF_DST)


@pytest.fixture(scope="module")
def fleet():
    """Run servers that walk a tensor in steps of different sizes."""
    with ExitStack() as stack:
        slabs = (2 << 20, 1000, 200)
        yield [stack.enter_context(serving(slab_bytes=slab)) for slab in slabs]


@pytest.fixture(scope="module")
def targets(fleet):
    return [server.address for server in fleet]


@contextmanager
def stuck(fleet, face=Client, **options):
    """Give a client one of whose parts gets stuck; in the end its servers and threads rest."""
    with relaying(fleet[0].address) as relay:
        relay.hold(after=100_000)
        addresses = (server.address for server in fleet)
        yield face([relay.address, *addresses], **{**ALWAYS, **options})
        relay.let_go()
        check_rest(fleet)


def check_rest(fleet):
    """Assert that no server works on, and no thread of a shared evaluation is left."""
    for server in fleet:
        wait_idle(server)
    ours = {"gradwire-split", "gradwire-share"}
    wait_until(lambda: not ours & {thread.name for thread in threading.enumerate()})


@st.composite
def calls(draw):
    """Make a call of any dialect, on any type, that may be one to refuse."""
    case = draw(CASES)
    dtype = draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.float64]))
    backward = draw(st.booleans())
    operator = case.pair.gradient if backward else case.pair.forward
    source, shape = (case.result, case.source) if backward else (case.source, case.result)
    array = np.random.default_rng(0).normal(size=source).astype(dtype)
    return operator, array, shape if draw(st.booleans()) else None


def evaluated(client, operator, array, shape):
    """Return a result, or field and message of a refusal."""
    try:
        return client.evaluate(operator, array, output_shape=shape)
    except errors.InvalidRequestError as error:
        return error.field, str(error)


@examples(100)
@given(call=calls(), threshold=st.sampled_from([0, 64, 500]))
def test_every_dialect_has_the_bits_or_the_refusal_of_one_server(targets, local, call, threshold):
    options = {**ALWAYS, "split_threshold_bytes": threshold, "chunk_bytes": 4099}
    with Client(targets * 2, **options) as client:
        result, whole = evaluated(client, *call), evaluated(local, *call)
    if isinstance(result, tuple) or isinstance(whole, tuple):
        assert result == whole
    else:
        same_bytes(result, whole)


@st.composite
def layouts(draw, *, sizes, shape):
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
@examples(60)
@given(layout=layouts(sizes=(2, 3, 12, 10), shape=(2, 3, 5, 7)))
def test_any_strides_of_input_and_out_have_the_bits_of_one_server(targets, local, layout):
    array, out = layout
    with Client(targets * 2, chunk_bytes=4099, **ALWAYS) as spread:
        assert spread.evaluate(BILINEAR, array, out=out) is out
    expected = local.evaluate(BILINEAR, array, output_shape=out.shape)
    np.testing.assert_array_equal(out, expected)


def test_a_part_has_half_the_threshold_or_more():
    for bulk, servers, threshold, count in (
        *((100, 4, 100, 1), (101, 4, 100, 2), (200, 4, 100, 2), (201, 4, 100, 3)),
        *((1000, 4, 100, 4), (1000, 1, 100, 1), (5, 3, 0, 3), (4, 4, 1, 4), (0, 3, 0, 1)),
    ):
        assert share_count(bulk, servers=servers, threshold_bytes=threshold) == count


def test_a_part_asks_for_no_more_than_it_needs():
    job = prepare(BILINEAR, DIFF_DST, output_shape=None, out=None)
    question = Shares(job, 3, chunk_bytes=999).ask()
    assert question is not None
    header = question.begin().open
    # The size of the result comes with one byte of it.
    assert (header.resume_from, header.stop_before) == (0, 1)
    small = np.broadcast_to(DIFF_DST[:, :1], DIFF_DST.shape)
    job = prepare(BILINEAR, small, output_shape=SHAPE, out=None)
    assert in_order(job).template.input_bytes == job.template.input_bytes < small.nbytes


def test_each_server_reads_its_part_and_little_more(targets, expected):
    with ExitStack() as stack:
        relays = [stack.enter_context(relaying(target)) for target in targets]
        client = stack.enter_context(Client([relay.address for relay in relays], **ALWAYS))
        same_bytes(halved(client, DIFF_DST), expected)
        sent = [relay.carried_bytes for relay in relays]
    share = DIFF_DST.nbytes / len(relays)
    assert all(0.95 * share < each < 1.1 * share for each in sent), sent


def test_progress_and_calls_at_once_see_one_call(targets, face, expected):
    reports = []
    with face(targets, chunk_bytes=5000, **ALWAYS) as client, ThreadPoolExecutor(2) as pool:
        given = [
            {"on_progress": lambda *report: reports.append(report)},
            {"out": np.empty(SHAPE, np.float32)},
        ]
        for call in [pool.submit(halved, client, DIFF_DST, **each) for each in given]:
            same_bytes(call.result(), expected)
    assert reports == sorted(reports)
    assert reports[-1] == (DIFF_DST.nbytes, expected.nbytes)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 6_000, 40_000])
def test_a_server_that_vanishes_amid_its_part_leaves_it_to_the_others(targets, expected, cut):
    with relaying(targets[0], cuts=[cut, cut]) as relay:
        relay.on_cut = relay.close
        options = {"chunk_bytes": 5000, "retry": PROMPT, **ALWAYS}
        with Client([relay.address, *targets], **options) as client:
            out = np.zeros(SHAPE, np.float32)
            assert halved(client, DIFF_DST, out=out) is out
            assert relay.cut
            same_bytes(out, expected)
            same_bytes(halved(client, DIFF_DST), expected)


@pytest.mark.parametrize(("attempts", "others"), [(3, False), (1, True)])
def test_where_no_server_is_left_or_may_be_tried_the_call_is_unavailable(targets, attempts, others):
    Counting.failed.clear()
    retry = Counting(initial_backoff_s=0.01, max_attempts=attempts)
    tried = ["127.0.0.1:1", targets[0] if others else "127.0.0.1:2"]
    with Client(tried, retry=retry, **ALWAYS) as client, pytest.raises(errors.UnavailableError):
        halved(client, DIFF_DST)
    # No share is tried again where none had a result.
    assert others or Counting.failed.count(1) == len(tried)


# On slow connections a share of a large tensor takes longer than it may stand still.
SLOW = {**ALWAYS, "timeout_s": 2.0, "chunk_bytes": 20_000}
DELAY_S = 0.12
BATCH = np.tile(DIFF_DST, (4, 1, 1, 1))


@pytest.mark.slow
def test_a_share_for_which_no_server_has_room_waits_for_another_to_end(expected):
    # Its tries are over, and it would count as stalled, long before the other share has ended.
    retry = RetryPolicy(initial_backoff_s=0.01, max_attempts=5)
    with serving(max_streams=1, slab_bytes=1000) as narrow, relaying(narrow.address) as relay:
        relay.delay_s = DELAY_S
        with Client(["127.0.0.1:1", relay.address], retry=retry, **SLOW) as client:
            same_bytes(halved(client, BATCH), np.tile(expected, (4, 1, 1, 1)))
        wait_idle(narrow)


@pytest.mark.slow
def test_a_share_may_take_longer_than_an_answer_but_one_that_never_comes_is_anothers(
    fleet, targets, expected
):
    with ExitStack() as stack:
        mute, *slow = (stack.enter_context(relaying(target)) for target in targets)
        for relay in slow:
            relay.delay_s = DELAY_S
        with Client([one.address for one in slow], **SLOW) as client:
            began = time.monotonic()
            same_bytes(halved(client, BATCH), np.tile(expected, (4, 1, 1, 1)))
            assert time.monotonic() - began > SLOW["timeout_s"]
        mute.swallow()
        with Client([mute.address, *targets], timeout_s=2.0, **ALWAYS) as client:
            same_bytes(halved(client, DIFF_DST), expected)
    check_rest(fleet)


def test_where_a_thread_cannot_start_none_is_left_that_writes(fleet, monkeypatch):
    start, shares = threading.Thread.start, iter(range(3))

    def exhausted(self):
        if self.name == "gradwire-share" and next(shares) == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", exhausted)
    with stuck(fleet) as client:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            halved(client, DIFF_DST)
        assert "gradwire-share" not in {thread.name for thread in threading.enumerate()}
    client.close()


def test_servers_that_compute_other_bits_do_not_share(targets, expected, monkeypatch):
    digests = iter(["one", "another"])
    digest_of = vars(Prepared)["digest"].func
    disagreeing = property(lambda prepared: next(digests, digest_of(prepared)))
    monkeypatch.setattr(Prepared, "digest", disagreeing)
    with Client(targets, **ALWAYS) as client:
        same_bytes(halved(client, DIFF_DST), expected)
    assert next(digests, None) is None


def test_each_server_sees_token_and_certificate(expected, tmp_path):
    papers, tokens = Papers(tmp_path), tmp_path / "tokens"
    token = add_token(tokens, name="evaluates", scopes=[Scope.EVALUATE])
    options = {**ALWAYS, "credentials": trusting(papers.roots)}
    guarded = {**papers.settings, "tokens": str(tokens)}
    with serving(**guarded) as one, serving(**guarded) as other:
        targets = [one.address, other.address]
        with Client(targets, token=token, **options) as client:
            same_bytes(halved(client, DIFF_DST), expected)
        with Client(targets, **options) as client, pytest.raises(errors.AuthenticationError):
            halved(client, DIFF_DST)


def test_a_part_that_gets_stuck_ends_the_call_and_leaves_nothing_behind(fleet):
    for deadline_s, stall_s, words in (
        (0.5, 20.0, r"no result within timeout_s, 0\.5 s"),
        (None, 3.0, r"nothing moved for 3\.0 s"),
    ):
        raises = pytest.raises(errors.DeadlineExceededError, match=words)
        with stuck(fleet, timeout_s=stall_s) as client, raises:
            halved(client, DIFF_DST, timeout_s=deadline_s)
        client.close()


async def test_a_cancelled_task_ends_every_part(fleet):
    under_way = asyncio.Event()

    def note(_sent, received):
        if received:
            under_way.set()

    with stuck(fleet, AsyncClient) as client:
        task = asyncio.ensure_future(halved(client, DIFF_DST, on_progress=note))
        await under_way.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await client.close()


def test_all_replicas_of_a_list_share_and_those_that_come_join_them(targets, expected):
    listing = List(targets[0])
    timings = []

    def tries():
        same_bytes(halved(client, DIFF_DST, on_timing=timings.append), expected)
        return timings[-1].tries

    with closing(listing), Client(listing.url, **ALWAYS) as client:
        assert tries() == 1
        listing.replicas += targets[1:]
        wait_until(lambda: tries() == len(targets))


@pytest.mark.slow
def test_only_what_is_above_the_threshold_is_shared(targets, expected):
    asked = []
    size = DIFF_DST.nbytes
    for threshold in (size, size - 1, size // 3, 0, None):
        chosen = {"split": False} if threshold is None else {"split_threshold_bytes": threshold}
        with Client(targets, **{**ALWAYS, **chosen}) as client:
            same_bytes(halved(client, DIFF_DST, on_timing=asked.append), expected)
    assert [timing.tries for timing in asked] == [1, 2, 3, 3, 1]
