"""Segments of a client: registered with a real server, pooled, found again, dropped."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import ops, v1
from gradwire._transport.shared_memory import (
    SegmentPool,
    SegmentRefusedError,
    SharedTry,
    segment_bytes,
)
from gradwire._wire.requests import prepare
from support.raw_calls import wait_until
from support.servers import ServerThread, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")

LINEAR = ops.DmlResampleGrad(interpolation_mode="linear")


@pytest.fixture
def server() -> Generator[ServerThread]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(address=f"unix:{folder}/socket", max_memory_bytes=64 << 20) as one,
    ):
        yield one


@pytest.fixture
def pool(server: ServerThread) -> Generator[SegmentPool]:
    one = SegmentPool(f"{server.address.removeprefix('unix:')}.memory")
    yield one
    one.close()


def held(server: ServerThread) -> int:
    return server.server.service.admission.memory_bytes


@given(nbytes=st.integers(1, 1 << 40))
def test_segments_are_whole_pages_and_at_most_an_eighth_longer(nbytes: int) -> None:
    size = segment_bytes(nbytes)
    assert size % 4096 == 0
    assert nbytes <= size <= max(4096, nbytes + nbytes // 8 + 4096)


def test_a_segment_is_used_again_once_no_array_lies_in_it(pool: SegmentPool) -> None:
    segment = pool.take(100_000)
    array = pool.memory(segment, 100_000).view(np.float32)
    view = array[10:20:3]
    del array
    gc.collect()
    assert pool.take(100_000) is not segment
    del view
    gc.collect()
    assert pool.take(100_000) is segment


def test_an_array_of_empty_is_found_with_its_aligned_parts(pool: SegmentPool) -> None:
    array = pool.empty((10, 16), "f8")
    assert array.shape == (10, 16)
    found, part = pool.find(array), pool.find(array[3:5])
    assert found is not None
    assert part is not None
    assert (part.handle, part.offset, part.length) == (found.handle, 3 * 128, 256)
    assert pool.find(array.reshape(-1)[1:3]) is None
    assert pool.find(np.empty((10, 16))) is None


def test_what_is_dropped_frees_the_servers_memory(server: ServerThread, pool: SegmentPool) -> None:
    segment = pool.take(1 << 20)
    assert held(server) == 1 << 20
    pool.drop(segment)
    wait_until(lambda: held(server) == 0)


def test_unused_segments_make_room_for_another_size(
    server: ServerThread, pool: SegmentPool
) -> None:
    pool.keep(pool.take(20 << 20))
    kept = pool.take(30 << 20)
    wait_until(lambda: held(server) == 30 << 20)
    with pytest.raises(SegmentRefusedError, match="bytes of memory"):
        pool.take(30 << 20)
    assert kept.nbytes == 30 << 20


def test_a_closed_pool_leaves_nothing(server: ServerThread, pool: SegmentPool) -> None:
    array = pool.empty((1 << 20,), np.uint8)
    pool.close()
    wait_until(lambda: held(server) == 0)
    array[:] = 1
    with pytest.raises(SegmentRefusedError):
        pool.take(1)


def test_no_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(SegmentRefusedError, match="nothing"):
        SegmentPool(str(tmp_path / "nothing"))


def test_after_an_answer_that_comes_late_no_other_is_awaited() -> None:
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder) / "s"
        beside.touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.bind(f"{beside}.memory")
            silent.listen()
            pool = SegmentPool(f"{beside}.memory")
            with pytest.raises(SegmentRefusedError):
                pool.take(1, wait_s=0.05)
            assert pool.closed
            with pytest.raises(SegmentRefusedError):
                pool.take(1)
            pool.close()


def test_an_abandoned_try_writes_nothing_to_its_caller(pool: SegmentPool) -> None:
    source, out = np.ones((2, 3, 40, 40), np.float32), np.full((2, 3, 20, 20), 7, np.float32)
    request = prepare(LINEAR, source, output_shape=None, out=out)
    attempt = SharedTry(pool, request, out.nbytes, 1.0)
    attempt.abandon()
    attempt.result(v1.EvaluateSharedResponse(output=request.output).SerializeToString())
    assert (out == 7).all()
