"""evaluate_many gives what evaluate gives for each item, whatever breaks and however it ends."""

import asyncio
import gc
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat

import ml_dtypes
import numpy as np
import pytest

from gradwire import AsyncClient, Client, Item, errors, ops
from gradwire._transport.batch import BatchStream
from gradwire._transport.channels import Pool, start_thread
from gradwire._transport.tracing import CallSpan
from gradwire_server.errors import RETRY_AFTER_S
from support import clients
from support.clients import AWAITED, BILINEAR, COPY, ITEM
from support.oracles import oracles
from support.raw_calls import PATIENCE_S, named, summed, wait_until
from support.relay import relaying
from support.servers import ServerThread, served_many, serving, wait_idle

# One connection, so that a relay sees every one there is.
PATIENT = {"connections": 1, "retry": clients.PROMPT}

pytestmark = pytest.mark.usefixtures("nothing_is_left")
either_way = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])


@pytest.fixture
def collect(face, address):
    """Return what gives place and outcome of every item of evaluate_many, errors too."""

    def outcomes_of(items, *, at=address, on_outcome=id, options=None, **many):
        with face(at, **(options or {})) as client:
            results = client.evaluate_many(items, **many)
            if face is AWAITED:
                # The next item is taken in the event loop as soon as a result is handed over.
                results.on_outcome, on_outcome = on_outcome, id
            while True:
                try:
                    outcome = next(results)
                except StopIteration:
                    return
                except Exception as error:  # noqa: BLE001 - an outcome too
                    outcome = error
                index = results.index
                on_outcome(index)
                if not many.get("ordered", True) and not isinstance(outcome, Exception):
                    assert outcome[0] == index
                    outcome = outcome[1]
                yield index, outcome

    return lambda *arguments, **named: list(outcomes_of(*arguments, **named))


def numbered(count):
    """Make items whose results tell their places."""
    for number in range(count):
        yield Item(COPY, np.full((16,), number, np.float32), (16,))


def check(outcomes, count):
    """Assert that every result came once, in order, with the bits that were sent."""
    check_places(outcomes, count)
    for index, result in outcomes:
        assert isinstance(result, np.ndarray), result
        assert (result == index).all()


def check_places(outcomes, count, *, ordered=True):
    places = [index for index, _ in outcomes]
    assert (places if ordered else sorted(places)) == list(range(count))


def check_results(client, items, outcomes):
    """Assert that every result is what evaluate gives for its item."""
    for index, result in outcomes:
        op, array, shape = items[index]
        wanted = client.evaluate(op, array, output_shape=shape)
        assert isinstance(result, np.ndarray)
        oracles.same_bits(result, wanted)
        assert result.strides == wanted.strides
        assert result.flags.writeable


@either_way
@pytest.mark.parametrize("most", [1, 3, 64])
def test_results_equal_evaluate(plain, collect, ordered, most):
    values = np.random.default_rng(0).normal(size=(2, 3, 8, 10))
    floats = values.astype(np.float32)
    types = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, ">f4")
    sources = [
        *(values.astype(dtype) for dtype in types),
        *(floats[:, :, ::-1], floats.transpose(0, 1, 3, 2), floats.transpose(1, 0, 2, 3)[:, ::2]),
        *(np.broadcast_to(floats[:1, :, :1], floats.shape), floats[:1]),
    ]
    nearest = ops.DmlResampleGrad(interpolation_mode="nearest")
    pairs = itertools.product(sources * 4, (BILINEAR, nearest))
    items = [(op, array, clients.half(array)) for array, op in pairs]
    for policy in ("not_larger", "not_smaller"):
        sizes = {"sizes": (9, 6), "keep_aspect_ratio_policy": policy}
        items.append((ops.OnnxResize(mode="linear", axes=(2, 3), **sizes), sources[1], None))
    outcomes = collect(iter(items), ordered=ordered, max_in_flight=most)
    check_places(outcomes, len(items), ordered=ordered)
    check_results(plain, items, outcomes)


@either_way
def test_an_error_is_raised_at_its_item_others_go_on(collect, ordered):
    good, invalid = np.arange(16, dtype=np.float32).reshape(4, 4), errors.InvalidRequestError
    scaled = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    # Items with the errors that evaluate() raises for them, by their places.
    bad = {
        0: ((COPY, good.astype(np.int32), (4, 4)), invalid, "array.dtype"),
        2: ((COPY, good), invalid, "output_shape"),
        3: ((scaled, good, (4, 4)), invalid, "scales"),
        7: ((COPY, np.ma.masked_array(good), (4, 4)), TypeError, "a masked array"),
        8: (("nearest", good, (4, 4)), TypeError, "op is a str"),
        9: (good, TypeError, "an item is a ndarray"),
        10: ((COPY,), TypeError, "an item is a tuple of 1"),
        13: ((COPY, good, (0, 4)), invalid, "output_shape[0]"),
    }
    items = [bad[index][0] if index in bad else (COPY, good, (4, 4)) for index in range(15)]
    outcomes = collect(items, ordered=ordered)
    check_places(outcomes, 15, ordered=ordered)
    for index, outcome in outcomes:
        if index not in bad:
            np.testing.assert_array_equal(np.asarray(outcome), good)
            continue
        _, kind, words = bad[index]
        assert isinstance(outcome, kind)
        assert str(outcome).startswith(words)
        assert getattr(outcome, "__notes__", []) == [f"item {index} of evaluate_many"]
        if isinstance(outcome, errors.GradwireError) and index in {2, 3}:
            assert (outcome.request_id or "").endswith(f"-{index}")


@either_way
@pytest.mark.parametrize("most", [1, 5])
def test_items_are_taken_as_there_is_room(collect, ordered, most):
    open_now, seen = set(), []

    def items():
        for number, item in enumerate(numbered(100)):
            open_now.add(number)
            seen.append(len(open_now))
            yield item

    collect(items(), on_outcome=open_now.remove, ordered=ordered, max_in_flight=most)
    assert max(seen) == most
    assert not open_now


@either_way
def test_results_do_not_wait_for_many_slow_items(collect, ordered):
    done = []

    def items():
        for item in numbered(500):
            if done:
                return
            time.sleep(0.06)
            yield item

    assert len(collect(items(), ordered=ordered, on_outcome=done.append)) < 500


def test_an_array_may_be_used_anew_at_once_and_out_takes_its_result(collect):
    array = np.empty((4, 6), np.float32)
    outs = [None, np.empty((6, 4), np.float32).T, None, np.empty((6, 4), ">f4")] * 25
    outs = [None if out is None else out.copy("K") for out in outs]

    def items():
        for number, out in enumerate(outs):
            array[...] = number
            layout = array.T[::-1] if number % 4 in {0, 3} else array
            yield Item(COPY, layout, None if out is not None else layout.shape, out)

    outcomes = collect(items())
    check(outcomes, 100)
    assert all(outs[index] is None or outs[index] is result for index, result in outcomes)


async def test_items_may_come_asynchronously(address):
    first_result = asyncio.Event()

    async def items():
        for item in numbered(50):
            yield item
            # The first result is handed over although more may come.
            await first_result.wait()

    async with AsyncClient(address) as client:
        results = client.evaluate_many(items(), max_in_flight=7)
        seen = [float((await anext(results))[0])]
        # Waiting for a result may be given up and taken up again.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(results), 0.05)
        first_result.set()
        assert [*seen, *[float(result[0]) async for result in results]] == list(range(50))


def mixed_items(kind):
    array = np.random.default_rng(1).normal(size=(1, 1, 512, 512)).astype(np.float32)
    if kind == "large":
        sizes = [4, 512, 8, 512, 512, 4, 4]
        return [(BILINEAR, array[..., :n, :n], (1, 1, n // 2, n // 2)) for n in sizes]
    array = array[..., :8, :8]
    if kind == "enlarged, broadcast":
        array = np.broadcast_to(array[:, :, :1], array.shape)
    enlarge = ops.Interpolate(mode="nearest", scales=(132.0, 132.0), data_format="NCX")
    return [(enlarge, array, None), (BILINEAR, array, (1, 1, 4, 4)), (enlarge, array, None)]


# A stream for the small ones and another one for a large one would be one too many.
@pytest.fixture(scope="module", params=[1, 64])
def narrow(request):
    with serving(max_streams=request.param) as server:
        yield server


@either_way
@pytest.mark.parametrize("kind", ["large", "enlarged", "enlarged, broadcast"])
def test_large_inputs_and_results_are_streamed_among_small_ones(narrow, collect, kind, ordered):
    items, options = mixed_items(kind), {"retry": clients.ONCE}
    outcomes = collect(items, at=narrow.address, ordered=ordered, options=options)
    check_places(outcomes, len(items), ordered=ordered)
    with Client(narrow.address) as client:
        check_results(client, items, outcomes)
    wait_idle(narrow)


CUTS = [(1,), (300,), (2_000,), (9_000, 1, 1, 20_000, 300, 5_000)]


@pytest.mark.parametrize(
    ("cuts", "options"),
    [
        *(pytest.param(cuts, PATIENT, id=str(cuts), marks=pytest.mark.slow) for cuts in CUTS),
        pytest.param((4_000,) * 8, {"retry": clients.SOON_OVER}, id="few tries"),
    ],
)
def test_a_stream_that_is_cut_anywhere_goes_on_where_it_stopped(address, collect, cuts, options):
    with relaying(address, cuts=cuts) as relay:
        check(collect(numbered(600), at=relay.address, options=options), 600)
        assert relay.connections == len(cuts) + 1


@pytest.mark.slow
def test_a_server_that_drains_hands_over_to_another(address, collect):
    old = ServerThread()
    old.start()
    with relaying(old.address) as relay:

        def hand_over():
            old.stop()
            relay.lead_to(address)

        stopping = threading.Thread(target=hand_over)
        outcomes = collect(
            numbered(1500),
            at=relay.address,
            options=PATIENT,
            on_outcome=lambda index: stopping.start() if index == 30 else None,
        )
        check(outcomes, 1500)
        stopping.join()


def test_silence_ends_items_in_flight_and_the_next_go_on(relay, collect):
    on = {4: relay.hold, 10: relay.let_go}
    outcomes = collect(
        numbered(30),
        at=relay.address,
        on_outcome=lambda index: on.get(index, bool)(),
        max_in_flight=3,
        timeout_s=4.0,
    )
    check_places(outcomes, 30)
    failed = [index for index, outcome in outcomes if isinstance(outcome, Exception)]
    assert failed
    assert set(failed) <= set(range(5, 14))
    for index, outcome in outcomes:
        if index in failed:
            assert isinstance(outcome, errors.DeadlineExceededError)
            assert str(outcome).startswith("no answer for 4.0 s, while ")
        else:
            assert (np.asarray(outcome) == index).all()


@pytest.mark.parametrize("slow", ["items", "results"])
def test_a_stream_that_the_server_ends_is_opened_again(collect, slow):
    def wait(what):
        if what == slow:
            time.sleep(0.25)

    def items():
        for item in numbered(4):
            wait("items")
            yield item

    with serving(stall_timeout_s=0.1) as server:
        options = {"on_outcome": lambda _: wait("results"), "max_in_flight": 2}
        check(collect(items(), at=server.address, **options), 4)


def test_a_full_server_is_asked_again_or_every_item_is_told(nobody, collect):
    with served_many(max_memory_bytes=1) as (server, _, other):
        full = server.address
        other.send(named(summed(1 << 18), "long"))  # hours of work take all memory
        wait_until(lambda: server.server.service.admission.memory_bytes)
        refused = collect(numbered(3), at=full, options={"retry": clients.BRISK})
        threading.Timer(0.3, other.call.cancel).start()
        check(collect(numbered(20), at=full, options=PATIENT), 20)
    unreached = collect(numbered(3), at=nobody, options={"retry": clients.BRISK})
    for kind, outcomes in (errors.OverloadedError, refused), (errors.UnavailableError, unreached):
        check_places(outcomes, 3)
        for index, error in outcomes:
            assert isinstance(error, kind)
            assert error.__notes__ == [f"item {index} of evaluate_many"]
            if isinstance(error, errors.OverloadedError):
                assert error.retry_after_s == RETRY_AFTER_S
                assert (error.request_id or "").endswith(f"-{index}")


def test_more_callers_than_streams_all_get_their_results(collect):
    with serving(max_streams=1) as server, ThreadPoolExecutor(4) as pool:
        options = {"at": server.address, "options": PATIENT}
        for call in [pool.submit(collect, numbered(50), **options) for _ in range(6)]:
            check(call.result(), 50)


def test_an_interrupt_loses_nothing(relay):
    with Client(relay.address) as client:
        results = client.evaluate_many(numbered(100))
        before = list(itertools.islice(results, 10))
        relay.hold()
        with clients.interrupted(after_s=0.2), pytest.raises(KeyboardInterrupt):
            before.extend(results)
        relay.let_go()
        check(list(enumerate([*before, *results])), 100)


def test_a_client_closed_by_another_thread_ends_what_is_in_flight(relay, face):
    client = face(relay.address)
    results = client.evaluate_many(numbered(100))
    next(results)
    relay.hold()
    threading.Timer(0.2, client.close).start()
    with pytest.raises(errors.CallCancelledError):
        list(results)


def told(results):
    """Return what each next() raises until there is nothing more; None for a result."""
    outcomes = []
    for _ in range(1000):
        try:
            next(results)
        except StopIteration:
            return outcomes
        except BaseException as error:  # noqa: BLE001 - an outcome too
            outcomes.append(error)
        else:
            outcomes.append(None)
    raise AssertionError("it never ends")


def check_cancelled(outcomes, *, begin):
    """Assert that errors of a closed client, with their items' notes, end the outcomes."""
    failed = [(index, error) for index, error in enumerate(outcomes, begin) if error is not None]
    assert failed
    assert failed[-1][0] == begin + len(outcomes) - 1
    for index, error in failed:
        assert isinstance(error, errors.CallCancelledError)
        assert error.__notes__ == [f"item {index} of evaluate_many"]


def test_a_closed_client_ends_every_item_it_took_and_the_results(address, face):
    with face(address) as client:
        assert list(client.evaluate_many([])) == []
        results = client.evaluate_many(repeat(ITEM, 500))
        for _ in range(5):
            next(results)
    check_cancelled(told(results), begin=5)
    assert list(results) == []


@pytest.mark.parametrize("taken", [0, 3, 30])
def test_closing_a_client_ends_who_waits_for_a_slow_source(address, taken):
    silent = threading.Event()

    async def items():
        for _ in range(taken):
            yield ITEM
            await asyncio.sleep(0.01)
        silent.set()
        await asyncio.Event().wait()

    with AWAITED(address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(told, client.evaluate_many(items()))
        assert silent.wait(PATIENCE_S)
        client.close()
        check_cancelled(waiting.result(PATIENCE_S), begin=0)


def failing(error):
    """Yield 100 items, then raise."""
    yield from repeat(ITEM, 100)
    raise error


async def failing_in_loop(error):
    for item in failing(error):
        yield item


ENDS = GeneratorExit, asyncio.CancelledError
FAILING = [
    *((Client, failing, error) for error in (ZeroDivisionError, KeyboardInterrupt, *ENDS)),
    *((AWAITED, failing, error) for error in ENDS),
    *((AWAITED, failing_in_loop, error) for error in (ZeroDivisionError, *ENDS)),
]


@either_way
@pytest.mark.parametrize(("face", "source", "error"), FAILING)
def test_what_a_source_raises_is_raised_once_and_loses_no_result(
    faced, face, source, error, ordered
):
    outcomes = told(faced.evaluate_many(source(error), ordered=ordered))
    in_order = ordered and (face is AWAITED or issubclass(error, Exception))
    failed = outcomes[100:] if in_order else [each for each in outcomes if each is not None]
    assert [type(each) for each in failed] == [error]
    # A generator that ends so ends an asynchronous client's results at once.
    assert outcomes.count(None) == 100 or (face is AWAITED and error is GeneratorExit)


def test_results_are_refused_to_a_second_thread_and_to_their_own_items(plain):
    waiting, going_on = threading.Event(), threading.Event()

    def late():
        waiting.set()
        assert going_on.wait(PATIENCE_S)
        yield from repeat(ITEM, 2)
        yield Item(COPY, next(results), (2, 2))

    with ThreadPoolExecutor(1) as pool:
        results = plain.evaluate_many(late())
        first = pool.submit(next, results)
        assert waiting.wait(PATIENCE_S)
        with pytest.raises(RuntimeError, match="one thread at a time"):
            next(results)
        going_on.set()
        np.testing.assert_array_equal(first.result(PATIENCE_S), next(results))
        assert [type(each) for each in told(results)] == [RuntimeError]


def test_results_closed_or_dropped_end_their_stream(server, faced):
    with faced.evaluate_many(repeat(ITEM)) as results:
        next(results)
        assert server.server.service.admission.streams == 1
    wait_idle(server)
    assert list(results) == []
    for _ in faced.evaluate_many(repeat(ITEM)):
        break
    wait_idle(server)
    faced.evaluate_many(repeat(ITEM))
    # Behind the last one too.
    next(faced.evaluate_many([ITEM]))
    wait_idle(server)
    wait_until(lambda: "gradwire-receiver" not in {each.name for each in threading.enumerate()})


def test_results_are_closed_by_no_thread_that_drops_them(server, monkeypatch):
    cancel, threads = BatchStream.cancel, []

    def noted(self):
        threads.append(threading.current_thread())
        cancel(self)

    monkeypatch.setattr(BatchStream, "cancel", noted)
    with Client(server.address) as client:
        dropped = [client.evaluate_many(numbered(50))]
        next(dropped[0])
        dropped.append(dropped)  # only garbage collection finds it, in whichever thread
        del dropped
        gc.collect()
        wait_idle(server)
    # It may hold a lock that closing takes.
    assert threads
    assert threading.current_thread() not in threads


def test_a_stream_that_two_threads_cancel_ends_once(plain, monkeypatch):
    cancel, give_back = BatchStream.cancel, Pool.give_back
    streams, ended = [], []

    def note(self):
        streams.append(self)
        cancel(self)

    @contextmanager
    def span(*_):
        yield CallSpan(None)
        ended.append(threading.current_thread())

    def cancel_again(self, taken, *, failed):
        give_back(self, taken, failed=failed)
        with ThreadPoolExecutor(1) as other:
            other.submit(cancel, streams.pop()).result(PATIENCE_S)

    monkeypatch.setattr(BatchStream, "cancel", note)
    monkeypatch.setattr("gradwire._transport.batch.call_span", span)
    monkeypatch.setattr(Pool, "give_back", cancel_again)
    with plain.evaluate_many(repeat(ITEM)) as results:
        next(results)
    assert ended == [threading.current_thread()]
    assert not streams


class Interrupting:
    """An array that Ctrl-C finds being read."""

    def __array__(self, *_):
        raise KeyboardInterrupt


def test_an_interrupt_as_an_item_is_taken_is_raised_once_and_loses_no_result(plain):
    items = [ITEM, ITEM._replace(array=Interrupting()), ITEM]
    kinds = [type(each) for each in told(plain.evaluate_many(items))]
    assert kinds == [KeyboardInterrupt, type(None), errors.CallCancelledError, type(None)]


def test_results_dropped_after_a_fault_take_no_more_items(address, monkeypatch):
    def start(name, *arguments):
        if name == "receiver":
            raise RuntimeError("can't start new thread")
        return start_thread(name, *arguments)

    async def drop():
        before = asyncio.all_tasks()
        async with AsyncClient(address) as client:
            results = client.evaluate_many(repeat(ITEM))
            with pytest.raises(RuntimeError, match="new thread"):
                await anext(results)
            taking = asyncio.all_tasks() - before
            assert taking
            del results
            async with asyncio.timeout(PATIENCE_S):
                while not all(each.done() for each in taking):
                    gc.collect()  # the error's traceback refers to the results
                    await asyncio.sleep(0.01)

    monkeypatch.setattr("gradwire._transport.batch.start_thread", start)
    asyncio.run(drop())
