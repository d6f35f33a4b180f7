"""However a tensor is cut, resumed or computed in slabs, the bits are those of Evaluate."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import v1
from support.raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    Answer,
    RawClient,
    as_stream,
    chunks,
    ended,
    identity_request,
    opening,
    published_request,
    read_all,
)
from support.servers import served

TYPES: dict[int, np.dtype[np.generic]] = {
    v1.DataType.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    v1.DataType.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    v1.DataType.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    v1.DataType.DATA_TYPE_FLOAT64: np.dtype(np.float64),
}
WHOLE = 2 << 20
# The most bytes of a chunk of a server with slabs of this size.
SLABS = {1: 1, 60: 7, 1000: 99, WHOLE: WHOLE}


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[int, RawClient]]:
    """Connect to a server for each slab size."""
    with ExitStack() as stack:
        yield {
            slab: stack.enter_context(served(slab_bytes=slab, max_chunk_bytes=most))[1]
            for slab, most in SLABS.items()
        }


Clients = dict[int, RawClient]


def sliced(clients: Clients, slab: int, request: v1.EvaluateRequest, send: int) -> Answer:
    """Evaluate by stream, in chunks of this size, or what the server takes."""
    size = min(send, SLABS[slab])
    return clients[slab].stream([opening(request), *chunks(request.data, size)])


def resumed(
    clients: Clients, slab: int, request: v1.EvaluateRequest, send: int, **fields: Any
) -> Answer:
    """Open a stream with these fields, and send what the server wants."""
    heard = threading.Event()
    wanted: list[tuple[int, int]] = []

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(request, **fields)
        if heard.wait(PATIENCE_S) and wanted:
            first, last = wanted[0]
            yield from chunks(request.data[:last], min(send, SLABS[slab]), start=first)

    def received() -> Iterator[v1.EvaluateStreamResponse]:
        for message in call:
            if message.WhichOneof("message") == "opened":
                wanted.append((message.opened.read_from_byte, message.opened.read_before_byte))
            heard.set()
            yield message

    call = clients[slab].start(messages())
    answer = read_all(call, received())
    heard.set()
    return answer


def opened(answer: Answer) -> v1.Opened:
    assert answer.refusal is None
    assert answer.opened is not None
    return answer.opened


def strides(draw: st.DrawFn, sizes: list[int], order: list[int]) -> list[int]:
    """Packed strides of axes in this order, slowest first, at times with a gap."""
    steps = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        steps[axis] = step
        step *= sizes[axis]
        step += draw(st.integers(0, 1)) * draw(st.integers(0, 3))
    return steps


@st.composite
def requests(draw: st.DrawFn) -> v1.EvaluateRequest:
    """Make a small resampling of any layout and type, with broadcast axes at times."""
    rank = draw(st.integers(1, 4))
    source, result = ([draw(st.integers(1, 6)) for _ in range(rank)] for _ in range(2))
    order = draw(st.permutations(range(rank)))
    other = order if draw(st.booleans()) else draw(st.permutations(range(rank)))
    steps = [step if draw(st.integers(0, 4)) else 0 for step in strides(draw, source, order)]
    number: Any = draw(st.sampled_from(list(TYPES)))
    carried = math.prod(size for size, step in zip(source, steps, strict=True) if step)
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).standard_normal(carried).astype(TYPES[number])
    name = draw(st.sampled_from(["dml_resample_grad", "dml_resample"]))
    mode: Any = draw(st.sampled_from([1, 2]))
    packed = strides(draw, result, other)
    return v1.EvaluateRequest(
        operator=v1.Operator(**{name: v1.DmlResample(interpolation_mode=mode)}),
        input=v1.TensorDescriptor(data_type=number, sizes=source, strides=steps),
        output=v1.TensorDescriptor(data_type=number, sizes=result, strides=packed),
        data=values.tobytes(),
    )


@settings(max_examples=100)
@given(data=st.data())
def test_a_stream_gives_the_bits_of_evaluate_however_it_is_cut(
    clients: Clients, data: st.DataObject
) -> None:
    request = data.draw(requests())
    whole = clients[WHOLE].evaluate(request)
    assert whole.refusal is None
    sizes = st.integers(1, 64)
    slab = data.draw(st.sampled_from(list(SLABS)))
    assert clients[slab].evaluate(request).data == whole.data
    cut = sliced(clients, slab, request, data.draw(sizes))
    digest = opened(cut).evaluation_digest
    assert (cut.data, cut.output) == (whole.data, whole.output)
    start = data.draw(st.integers(0, len(whole.data) - 1))
    resume: dict[str, Any] = {"resume_from": start, "evaluation_digest": digest}
    rest = resumed(clients, slab, request, data.draw(sizes), **resume)
    assert rest.refusal is None
    assert rest.data == whole.data[start:]
    assert rest.chunks[0][0] == start
    stop = data.draw(st.integers(start + 1, len(whole.data)))
    part = resumed(clients, slab, request, data.draw(sizes), resume_from=start, stop_before=stop)
    assert part.refusal is None
    assert part.data == whole.data[start:stop]


def large(name: str, number: Any) -> v1.EvaluateRequest:
    """Make a tensor of several slabs of 1000 bytes."""
    source, result = (1, 3, 16, 9), (1, 3, 8, 7)
    attributes = {
        "mode": v1.Interpolate.MODE_BILINEAR,
        "data_format": v1.Interpolate.DATA_FORMAT_NCX,
        "sizes": source[2:],
    }
    if name == "interpolate":
        source, result = result, source
    values = np.random.default_rng(7).standard_normal(source).astype(TYPES[number])
    return v1.EvaluateRequest(
        operator=v1.Operator(**{name: v1.Interpolate(**attributes)}),
        input=v1.TensorDescriptor(data_type=number, sizes=source),
        output=v1.TensorDescriptor(data_type=number, sizes=result),
        data=values.tobytes(),
    )


# Any two of an operator, a type and a slab meet.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "slab"),
    [
        (("interpolate_backward", "interpolate")[(at + turn) % 2], number, slab)
        for at, number in enumerate(TYPES)
        for turn, slab in enumerate((1, 1000, WHOLE))
    ],
)
def test_single_bytes_in_and_out_give_the_bits_of_evaluate(
    clients: Clients, name: str, number: int, slab: int
) -> None:
    request = large(name, number)
    whole = clients[WHOLE].evaluate(request).data
    assert clients[slab].evaluate(request).data == whole
    for send in (len(request.data), 99, 1):
        assert sliced(clients, slab, request, send).data == whole


@pytest.mark.parametrize("slab", [1, 1000])
def test_every_cut_and_resume_point_of_the_published_example(clients: Clients, slab: int) -> None:
    request = published_request()
    digest = opened(sliced(clients, slab, request, 12)).evaluation_digest
    for size in range(1, 17):
        assert sliced(clients, slab, request, size).data == PUBLISHED_RESULT
        resume: dict[str, Any] = {"resume_from": size - 1, "evaluation_digest": digest}
        assert resumed(clients, slab, request, size, **resume).data == PUBLISHED_RESULT[size - 1 :]


@pytest.mark.parametrize("slab", SLABS)
def test_a_fresh_stream_starts_at_byte_0_even_where_the_first_bytes_do_not_matter(
    clients: Clients, slab: int
) -> None:
    # Nearest: the one result element reads the middle one of three.
    request = identity_request(3, data=np.array([7, 8, 9], "<f4").tobytes())
    mode = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR
    request.operator.dml_resample.interpolation_mode = mode
    request.output.sizes[:] = [1]
    answer = sliced(clients, slab, request, 5)
    assert opened(answer).read_from_byte == 0
    assert answer.data == request.data[4:8]


def test_a_part_of_the_result_reads_only_what_it_needs(clients: Clients) -> None:
    request = large("interpolate_backward", v1.DataType.DATA_TYPE_FLOAT32)
    whole = clients[WHOLE].evaluate(request).data
    answer = resumed(clients, 1000, request, 100, resume_from=len(whole) - 1)
    # Some rows of the last of three planes.
    assert opened(answer).read_from_byte >= len(request.data) * 2 // 3
    assert answer.data == whole[-1:]
    row = len(whole) // 24  # the first of 8 in each of 3 planes
    for slab, most in ((1, 1 / 6), (WHOLE, 1 / 3)):
        answer = resumed(clients, slab, request, 100, stop_before=row)
        assert opened(answer).read_from_byte == 0
        assert 0 < opened(answer).read_before_byte <= len(request.data) * most
        assert answer.data == whole[:row]


def test_equal_evaluations_have_equal_digests_on_all_servers_and_others_are_not_resumed(
    clients: Clients,
) -> None:
    request = large("interpolate", v1.DataType.DATA_TYPE_FLOAT16)
    answers = [sliced(clients, slab, request, 500) for slab in SLABS]
    (digest,) = {opened(answer).evaluation_digest for answer in answers}
    resume: dict[str, Any] = {"resume_from": 4, "evaluation_digest": digest}
    ended(resumed(clients, 1000, published_request(), 5, **resume), "EVALUATION_CHANGED")


def test_small_calls_of_one_length_that_take_turns_have_the_bits_of_streams(
    client: RawClient,
) -> None:
    numbers = np.random.default_rng(0)
    for number in range(60):
        request = published_request()
        scale = (1.5, 1.51, 1.52, 1.53, 1.54, 1.55)[number * 7 % 11 % 6]
        request.operator.dml_resample_grad.scales[1] = scale
        request.data = numbers.normal(size=3).astype("<f4").tobytes()
        answer = client.evaluate(request)
        assert answer.refusal is None
        assert answer.data == client.stream(as_stream(request)).data
