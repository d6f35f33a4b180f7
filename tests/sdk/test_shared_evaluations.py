"""Large tensors of clients on a unix socket go through shared memory, with the bits of a stream."""

import gc
import os
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gradwire import Client, DeadlineExceededError, InvalidRequestError, ops, v1
from gradwire._transport.shared_memory import SegmentPool, SegmentRefusedError, SharedTry
from gradwire._wire.requests import prepare
from gradwire.tensors import WireView
from support.clients import BILINEAR, FORKING, LAYOUTS, run_script
from support.raw_calls import PATIENCE_S, wait_until
from support.scraping import scrape
from support.servers import gated, same_bytes, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SOURCE, RESULT = (2, 3, 300, 400), (2, 3, 150, 200)
RANDOM = np.random.default_rng(0)
GRADIENT = RANDOM.normal(size=SOURCE).astype(np.float32)


def evaluated(face, server, array, **named):
    """Evaluate by a client of its own."""
    shared_memory = named.pop("shared_memory", True)
    with face(server.address, shared_memory=shared_memory) as client:
        return client.evaluate(**{"op": LINEAR, "array": array, **named})


@contextmanager
def local(serve=serving, **settings):
    """Run a server on a socket with a path short enough."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(address=f"unix:{folder}/socket", **settings) as served,
    ):
        yield served


@pytest.fixture(scope="module")
def server():
    with local(http_port="0") as one:
        yield one


@pytest.fixture(scope="module")
def expected(server):
    return evaluated(Client, server, GRADIENT, output_shape=RESULT, shared_memory=False)


def filled(client, values):
    """Return an array of empty() with these values."""
    array = client.empty(values.shape)
    array[...] = values
    return array


def calls(server):
    metrics = scrape(server.http_address)
    return metrics.value("gradwire_requests_total", method="EvaluateShared")


def held(server):
    return server.server.service.admission.memory_bytes


ARRAYS = {
    **{name: layout(GRADIENT) for name, layout in LAYOUTS.items()},
    "broadcast": np.broadcast_to(GRADIENT[:1], SOURCE),
    "float16": GRADIENT.astype(np.float16),
    "bfloat16": GRADIENT.astype(ml_dtypes.bfloat16),
    "float64": GRADIENT.astype(np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_any_array_gives_the_bits_of_a_stream(server, face, name):
    array = ARRAYS[name]
    before = calls(server)
    stream = evaluated(Client, server, array, output_shape=RESULT, shared_memory=False)
    assert calls(server) == before
    shared = evaluated(face, server, array, output_shape=RESULT)
    assert calls(server) == before + 1
    assert shared.strides == stream.strides
    same_bytes(shared, stream)
    out = np.full((2, 3, 150, 400), np.nan, stream.dtype)[..., ::2]
    assert evaluated(face, server, array, out=out) is out
    assert out.tobytes() == np.ascontiguousarray(stream).tobytes()


def test_memory_is_used_again_but_not_of_living_results(server, expected):
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        evaluate = partial(client.evaluate, LINEAR, output_shape=RESULT)
        first = evaluate(GRADIENT)
        evaluate(-GRADIENT)
        gc.collect()
        before = held(server)
        for _ in range(20):
            evaluate(-GRADIENT)
        gc.collect()
        assert held(server) <= before + 2 * GRADIENT.nbytes
        results = [first, *client.evaluate_many([(LINEAR, GRADIENT, RESULT)] * 3)]
        results += pool.map(evaluate, [GRADIENT] * 8)
        assert {one.tobytes() for one in results} == {expected.tobytes()}
    first += 0
    assert first.tobytes() == expected.tobytes()
    del first, results, evaluate
    gc.collect()
    wait_until(lambda: held(server) == 0)


def test_arrays_of_empty_and_results_are_not_copied(server, expected):
    small = (2, 3, 75, 100)
    with Client(server.address) as client:
        array = filled(client, GRADIENT)
        before = held(server)
        result = client.evaluate(LINEAR, array, output_shape=RESULT)
        assert held(server) - before < GRADIENT.nbytes  # of the result alone
        assert result.tobytes() == expected.tobytes()
        again = client.evaluate(LINEAR, result, output_shape=small)
        assert held(server) - before < GRADIENT.nbytes
    with Client(server.address, shared_memory=False) as ordinary:
        plain = ordinary.evaluate(LINEAR, filled(ordinary, expected), output_shape=small)
    assert again.tobytes() == plain.tobytes()


def test_a_server_without_room_gets_streams(expected):
    with local(max_memory_bytes=16 << 20) as server:
        large = np.tile(GRADIENT, (4, 1, 1, 1))
        result = evaluated(Client, server, large, output_shape=(8, 3, 150, 200))
        assert result[:2].tobytes() == expected.tobytes()
        assert held(server) == 0


def test_a_late_worker_writes_to_no_array_of_its_caller():
    with local(gated) as (server, gate), Client(server.address) as client:
        gate.set()
        client.evaluate(LINEAR, GRADIENT, output_shape=RESULT)
        gate.clear()
        with pytest.raises(DeadlineExceededError):
            client.evaluate(LINEAR, GRADIENT, out=np.zeros(RESULT, np.float32), timeout_s=0.3)
        kept = [filled(client, np.full(RESULT, 7, np.float32)) for _ in range(4)]
        gate.set()
        wait_until(lambda: not server.server.service.admission.computing)
        assert all((each == 7).all() for each in kept)


def test_a_server_that_comes_back_shares_memory_again(expected):
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/socket"
        with Client(address) as client:
            with serving(address=address):
                array = filled(client, GRADIENT)

            def shares():
                result = client.evaluate(LINEAR, array, output_shape=RESULT)
                assert result.tobytes() == expected.tobytes()
                return calls(back) > 0

            for _ in range(2):
                with serving(address=address, http_port="0") as back:
                    wait_until(shares)


def test_a_forked_process_shares_memory_of_its_own(server):
    before = calls(server)
    run_script(FORKING, server.address)
    # Before each of four forks, in each child and at last.
    assert calls(server) == before + 9


@pytest.fixture
def pool():
    """Share memory with a server that has little, of which a test has all."""
    with local(max_memory_bytes=64 << 20) as one:
        pool = SegmentPool(f"{one.address.removeprefix('unix:')}.memory")
        yield pool
        pool.close()
        wait_until(lambda: held(one) == 0)


def test_an_array_of_empty_is_found_with_its_aligned_parts(pool):
    array = pool.empty((10, 16), "f8")
    assert array.shape == (10, 16)
    found, part = pool.find(array), pool.find(array[3:5])
    assert found is not None
    assert part is not None
    assert (part.handle, part.offset, part.length) == (found.handle, 3 * 128, 256)
    assert pool.find(array.reshape(-1)[1:3]) is None
    assert pool.find(np.empty((10, 16))) is None


def test_after_an_answer_that_comes_late_no_other_is_awaited():
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent,
    ):
        (Path(folder) / "s").touch()
        silent.bind(f"{folder}/s.memory")
        silent.listen()
        pool = SegmentPool(f"{folder}/s.memory")
        for _ in range(2):
            with pytest.raises(SegmentRefusedError):
                pool.take(1, wait_s=0.05)
            assert pool.closed


def test_a_try_that_is_closed_while_its_result_is_copied_ends_with_a_piece(pool, monkeypatch):
    source, out = np.ones((1, 1, 8, 8), np.float32), np.full((1, 1, 2048, 2048), 7, np.float32)
    request = prepare(LINEAR, source, output_shape=None, out=out)
    attempt = SharedTry(pool, request, out.nbytes, 1.0)
    reply = v1.EvaluateSharedResponse(output=request.template.output).SerializeToString()
    write, begun = WireView.write, threading.Event()

    def write_slowly(self, offset, data):
        write(self, offset, data)
        begun.set()
        time.sleep(0.1)

    monkeypatch.setattr(WireView, "write", write_slowly)
    with ThreadPoolExecutor(1) as thread:
        copied = thread.submit(attempt.result, reply)
        assert begun.wait(PATIENCE_S)
        attempt.close()
        written = np.count_nonzero(out != 7)
        assert 0 < written < out.size / 2
        copied.result(PATIENCE_S)
    assert np.count_nonzero(out != 7) == written
    # Nor does an answer that comes later write anything.
    attempt.result(reply)
    assert np.count_nonzero(out != 7) == written


def test_unused_segments_make_room_for_another_size(pool):
    pool.keep(pool.take(20 << 20))
    kept = pool.take(30 << 20)
    with pytest.raises(SegmentRefusedError, match="bytes of memory"):
        pool.take(30 << 20)
    assert kept.nbytes == 30 << 20


def test_errors_are_those_of_a_stream(server):
    seen = []
    wrong = {"op": BILINEAR, "output_shape": (2, 4, 150, 200)}
    for shared in (True, False):
        with pytest.raises(InvalidRequestError) as caught:
            evaluated(Client, server, GRADIENT, shared_memory=shared, **wrong)
        seen.append((caught.value.field, caught.value.reason))
    assert seen[0] == seen[1]
    assert all(seen[0])
