"""Laws of what a stream has moved: nothing is stored twice, out of order, or beyond the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import EvaluationChangedError, ServerError, ops, tensors, v1
from gradwire._core.evaluation import ResultBuffer, Transfer
from gradwire._wire.requests import prepare

COPY = ops.DmlResample(interpolation_mode="linear")
ARRAY: Any = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)
BYTES = ARRAY.tobytes()
DESCRIPTOR = tensors.describe(ARRAY)


JOB = prepare(COPY, ARRAY, output_shape=ARRAY.shape, out=None)


def begun(**options: Any) -> Transfer:
    """Return a transfer in its first try."""
    transfer = Transfer(JOB, chunk_bytes=10, **options)
    transfer.begin()
    return transfer


def opened(digest: str = "one", **changes: Any) -> v1.Opened:
    answer = v1.Opened(
        output=DESCRIPTOR, read_from_byte=0, evaluation_digest=digest, max_chunk_bytes=100
    )
    answer.MergeFrom(v1.Opened(**changes))
    return answer


@given(st.integers(0, 2 * len(BYTES)), st.binary(max_size=2 * len(BYTES)))
def test_only_the_bytes_that_come_next_are_taken(offset: int, data: bytes) -> None:
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:50])
    if offset == 50 and 1 <= len(data) <= len(BYTES) - 50:
        transfer.store(offset, data)
        assert transfer.received == 50 + len(data)
    else:
        with pytest.raises(ServerError, match="comes next"):
            transfer.store(offset, data)
        assert transfer.received == 50


@given(st.lists(st.integers(1, len(BYTES) - 1), unique=True).map(sorted))
def test_a_result_cut_anywhere_is_put_together(cuts: list[int]) -> None:
    buffer = ResultBuffer(JOB)
    transfer = Transfer(JOB, chunk_bytes=10, buffer=buffer)
    for start, stop in pairwise([0, *cuts, len(BYTES)]):
        request = transfer.begin().open
        assert (request.resume_from, request.evaluation_digest) == (start, "one" if start else "")
        assert not transfer.complete
        transfer.accept(opened())
        transfer.store(start, BYTES[start:stop])
        assert transfer.progressed
    transfer.end()
    np.testing.assert_array_equal(buffer.array, ARRAY)


@given(st.lists(st.integers(1, len(BYTES) // 4 - 1), unique=True).map(sorted), st.randoms())
def test_parts_of_a_result_land_in_one_array_whatever_their_order(
    cuts: list[int], chance: Any
) -> None:
    buffer = ResultBuffer(JOB)
    ends = [0, *(4 * cut for cut in cuts), len(BYTES)]
    parts = [range(first, stop) for first, stop in pairwise(ends)]
    chance.shuffle(parts)
    for number, part in enumerate(parts):
        transfer = Transfer(JOB, chunk_bytes=10, part=part, buffer=buffer)
        request = transfer.begin().open
        assert (request.resume_from, request.stop_before) == (part.start, part.stop)
        assert request.evaluation_digest == ("one" if number else "")
        transfer.accept(opened(read_from_byte=part.start, read_before_byte=part.stop))
        assert not transfer.complete
        transfer.note_sent(part.stop)
        assert transfer.sent == len(part)
        with pytest.raises(ServerError, match="comes next"):
            transfer.store(part.start, bytes(len(part) + 1))
        transfer.store(part.start, BYTES[part.start : part.stop])
        transfer.end()
    np.testing.assert_array_equal(buffer.array, ARRAY)


def test_bytes_of_another_evaluation_are_not_joined() -> None:
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:8])
    transfer.begin()
    with pytest.raises(EvaluationChangedError):
        transfer.accept(opened("another"))
    transfer.restart()
    request = transfer.begin().open
    assert (request.resume_from, request.evaluation_digest) == (0, "")
    transfer.accept(opened("another"))
    transfer.store(0, BYTES[:4])
    assert not transfer.progressed
    transfer.store(4, BYTES[4:])
    assert transfer.progressed
    assert transfer.complete
    buffer = ResultBuffer(JOB)
    parts = range(80), range(80, len(BYTES))
    one, other = (begun(part=part, buffer=buffer) for part in parts)
    one.accept(opened(read_before_byte=80))
    with pytest.raises(EvaluationChangedError):
        other.accept(opened("another", read_from_byte=80, read_before_byte=len(BYTES)))


@pytest.mark.parametrize(
    "changes",
    [
        {"read_from_byte": len(BYTES) + 1},
        {"read_from_byte": -1},
        {"output": v1.TensorDescriptor(strides=[1, 6])},
        {"output": v1.TensorDescriptor(strides=[7])},
        {"output": v1.TensorDescriptor(sizes=[2])},
        {"output": v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT64)},
        *(
            {"part": range(8), "read_from_byte": first, "read_before_byte": stop}
            for first, stop in ((9, 8), (0, len(BYTES) + 1), (-1, 8), (0, -1))
        ),
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_is_the_servers_fault(changes: dict[str, Any]) -> None:
    fields = {name: value for name, value in changes.items() if name != "part"}
    with pytest.raises(ServerError):
        begun(part=changes.get("part", range(0))).accept(opened(**fields))


def test_too_little_is_the_servers_fault_too() -> None:
    with pytest.raises(ServerError, match="before opened"):
        begun().store(0, BYTES)
    transfer = begun()
    transfer.accept(opened())
    transfer.store(0, BYTES[:-1])
    with pytest.raises(ServerError, match="more are due"):
        transfer.end()
