"""Large tensors of clients on a unix socket go through shared memory, with the bits of a stream."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import Client, DeadlineExceededError, InvalidRequestError, ops
from support.clients import BILINEAR, Face
from support.raw_calls import wait_until
from support.scraping import scrape
from support.servers import Gated, ServerProcess, ServerThread, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")
SOURCE, RESULT = (2, 3, 300, 400), (2, 3, 150, 200)
RANDOM = np.random.default_rng(0)
GRADIENT = RANDOM.normal(size=SOURCE).astype(np.float32)


def evaluated(
    face: Face, server: ServerThread, array: Any, *, shared_memory: bool = True, **named: Any
) -> NDArray[Any]:
    """Evaluate by a client of its own."""
    with face(server.address, shared_memory=shared_memory) as client:
        result: NDArray[Any] = client.evaluate(LINEAR, array, **named)
        return result


@pytest.fixture(scope="module")
def server() -> Generator[ServerThread]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(address=f"unix:{folder}/socket", http_port="0") as one,
    ):
        yield one


@pytest.fixture(scope="module")
def expected(server: ServerThread) -> NDArray[Any]:
    return evaluated(Client, server, GRADIENT, output_shape=RESULT, shared_memory=False)


def calls(server: ServerThread, method: str) -> float:
    metrics = scrape(server.server.instruments.address)
    return metrics.value("gradwire_requests_total", method=method)


def held(server: ServerThread) -> int:
    return server.server.service.admission.memory_bytes


ARRAYS: dict[str, NDArray[Any]] = {
    "packed": GRADIENT,
    "channels last": np.ascontiguousarray(GRADIENT.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "every other": np.repeat(GRADIENT, 2, axis=3)[..., ::2],
    "backward": GRADIENT[:, ::-1, :, ::-1],
    "big-endian": GRADIENT.astype(">f4"),
    "broadcast": np.broadcast_to(GRADIENT[:1], SOURCE),
    "float16": GRADIENT.astype(np.float16),
    "bfloat16": GRADIENT.astype(ml_dtypes.bfloat16),
    "float64": GRADIENT.astype(np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_any_array_gives_the_bits_of_a_stream(server: ServerThread, face: Face, name: str) -> None:
    array = ARRAYS[name]
    stream = evaluated(Client, server, array, output_shape=RESULT, shared_memory=False)
    before = calls(server, "EvaluateShared")
    shared = evaluated(face, server, array, output_shape=RESULT)
    assert calls(server, "EvaluateShared") == before + 1
    assert shared.dtype == stream.dtype
    assert shared.strides == stream.strides
    assert shared.tobytes() == stream.tobytes()


def test_out_is_written(server: ServerThread, expected: NDArray[Any], face: Face) -> None:
    out = np.full((2, 3, 150, 400), np.nan, np.float32)[..., ::2]
    assert evaluated(face, server, GRADIENT, out=out) is out
    assert out.tobytes() == expected.tobytes()


def test_results_stay_as_they_are_after_later_calls_and_the_end(
    server: ServerThread, expected: NDArray[Any]
) -> None:
    with Client(server.address) as client:
        first = client.evaluate(LINEAR, GRADIENT, output_shape=RESULT)
        for _ in range(5):
            client.evaluate(LINEAR, -GRADIENT, output_shape=RESULT)
        assert first.tobytes() == expected.tobytes()
    first += 0
    assert first.tobytes() == expected.tobytes()


def test_an_array_of_empty_is_not_copied_and_results_are_inputs_again(
    server: ServerThread, expected: NDArray[Any]
) -> None:
    with Client(server.address) as client:
        array = client.empty(SOURCE)
        array[...] = GRADIENT
        before = held(server)
        result = client.evaluate(LINEAR, array, output_shape=RESULT)
        assert held(server) - before < GRADIENT.nbytes  # of the result alone
        assert result.tobytes() == expected.tobytes()
        small = (2, 3, 75, 100)
        again = client.evaluate(LINEAR, result, output_shape=small)
        assert held(server) - before < GRADIENT.nbytes
    plain = evaluated(Client, server, expected, output_shape=small, shared_memory=False)
    assert again.tobytes() == plain.tobytes()


def test_memory_is_used_again(server: ServerThread) -> None:
    with Client(server.address) as client:
        client.evaluate(LINEAR, GRADIENT, output_shape=RESULT)
        gc.collect()
        before = held(server)
        for _ in range(20):
            client.evaluate(LINEAR, GRADIENT, output_shape=RESULT)
        gc.collect()
        assert held(server) <= before + 2 * GRADIENT.nbytes
    wait_until(lambda: held(server) == 0)


def test_evaluate_many_and_threads_share_the_memory(
    server: ServerThread, expected: NDArray[Any]
) -> None:
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        results = list(client.evaluate_many([(LINEAR, GRADIENT, RESULT)] * 3))
        single = partial(client.evaluate, LINEAR, output_shape=RESULT)
        results += pool.map(single, [GRADIENT] * 8)
    assert len(results) == 11
    assert {one.tobytes() for one in results} == {expected.tobytes()}


def test_without_shared_memory_an_array_of_empty_is_ordinary(
    server: ServerThread, expected: NDArray[Any]
) -> None:
    with Client(server.address, shared_memory=False) as client:
        array = client.empty(SOURCE)
        array[...] = GRADIENT
        before = calls(server, "EvaluateShared")
        assert client.evaluate(LINEAR, array, output_shape=RESULT).tobytes() == expected.tobytes()
        assert calls(server, "EvaluateShared") == before


def test_a_server_without_room_gets_streams(expected: NDArray[Any]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(address=f"unix:{folder}/socket", max_memory_bytes=16 << 20) as server,
        Client(server.address) as client,
    ):
        large = np.tile(GRADIENT, (4, 1, 1, 1))
        result = client.evaluate(LINEAR, large, output_shape=(8, 3, 150, 200))
        assert result[:2].tobytes() == expected.tobytes()
        assert held(server) == 0


def test_errors_are_those_of_a_stream(server: ServerThread) -> None:
    errors: list[InvalidRequestError] = []
    for shared in (True, False):
        with (
            Client(server.address, shared_memory=shared) as client,
            pytest.raises(InvalidRequestError) as caught,
        ):
            client.evaluate(BILINEAR, GRADIENT, output_shape=(2, 4, 150, 200))
        errors.append(caught.value)
    one, other = errors
    assert type(one) is type(other)
    assert one.field == other.field != ""
    assert one.reason == other.reason != ""


def test_a_late_worker_writes_to_no_array_of_its_caller() -> None:
    backend = Gated()
    with tempfile.TemporaryDirectory() as folder:
        server = ServerThread(backend=backend, compute_threads=1, address=f"unix:{folder}/socket")
        server.start()
        try:
            with Client(server.address) as client:
                client.evaluate(LINEAR, GRADIENT, output_shape=RESULT)
                out = np.zeros(RESULT, np.float32)
                backend.gate.clear()
                with pytest.raises(DeadlineExceededError):
                    client.evaluate(LINEAR, GRADIENT, out=out, timeout_s=0.3)
                kept = [client.empty(RESULT) for _ in range(4)]
                for each in kept:
                    each[...] = 7
                backend.gate.set()
                wait_until(lambda: not server.server.service.admission.computing)
                assert all((each == 7).all() for each in kept)
        finally:
            backend.gate.set()
            server.stop()


def test_a_server_that_is_killed_and_comes_back_shares_memory_again(
    expected: NDArray[Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process = ServerProcess("--local-socket", f"{folder}/socket")
        with Client(f"unix:{folder}/socket") as client:
            array = client.empty(SOURCE)
            array[...] = GRADIENT
            for _ in range(3):
                result = client.evaluate(LINEAR, array, output_shape=RESULT)
                assert result.tobytes() == expected.tobytes()
                process.kill()
                process.start()
            last = client.evaluate(LINEAR, array, output_shape=RESULT)
            assert last.tobytes() == expected.tobytes()
        process.kill()


# Runs apart from pytest, whose threads are not at rest when a test wants to fork.
FORKING = """
import os, sys
import numpy as np
from gradwire import Client, ops

linear = ops.DmlResampleGrad(interpolation_mode="linear")
with Client(sys.argv[1]) as client:
    array = client.empty((2, 3, 300, 400))
    array[...] = np.arange(array.size, dtype=np.float32).reshape(array.shape)

    def evaluate():
        return client.evaluate(linear, array, output_shape=(2, 3, 150, 200)).tobytes()

    first = evaluate()
    child = os.fork()
    if not child:
        os._exit(evaluate() != first)
    assert os.waitpid(child, 0)[1] == 0
    assert evaluate() == first
"""


def test_a_forked_process_shares_memory_of_its_own(server: ServerThread) -> None:
    before = calls(server, "EvaluateShared")
    command = [sys.executable, "-c", FORKING, server.address]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - our own program
    assert calls(server, "EvaluateShared") == before + 3
