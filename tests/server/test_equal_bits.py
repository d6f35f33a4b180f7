"""However a tensor is cut, resumed or computed in slabs, the bits are those of Evaluate."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import v1
from support.raw_calls import (
    PATIENCE_S,
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
from support.servers import serving

TYPES: dict[int, np.dtype[np.generic]] = {
    v1.DataType.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    v1.DataType.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    v1.DataType.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    v1.DataType.DATA_TYPE_FLOAT64: np.dtype(np.float64),
}
# The most bytes of a chunk of a server with slabs of this size.
SLABS = {1: 1, 60: 7, 1000: 99, 2 << 20: 2 << 20}


class SlabClient(RawClient):
    """A client of a server with slabs of this size."""

    def __init__(self, address: str, slab: int) -> None:
        super().__init__(address)
        self.chunk_bytes = SLABS[slab]


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[int, SlabClient]]:
    """Connect to a server for each slab size."""
    with ExitStack() as stack:
        clients = dict[int, SlabClient]()
        for slab, chunk_bytes in SLABS.items():
            server = stack.enter_context(serving(slab_bytes=slab, max_chunk_bytes=chunk_bytes))
            clients[slab] = stack.enter_context(SlabClient(server.address, slab))
        yield clients


def sliced(client: SlabClient, request: v1.EvaluateRequest, *, send: int) -> Answer:
    """Evaluate by stream, in chunks of this size, or what the server takes."""
    size = min(send, client.chunk_bytes)
    return client.stream([opening(request), *chunks(request.data, size)])


def resumed(
    client: SlabClient,
    request: v1.EvaluateRequest,
    *,
    start: int,
    digest: str,
    send: int,
    stop: int = 0,
) -> Answer:
    """Resume a stream at a result byte, up to another one, sending what the server wants."""
    heard = threading.Event()
    wanted: list[tuple[int, int]] = []

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(request, resume_from=start, evaluation_digest=digest, stop_before=stop)
        if heard.wait(PATIENCE_S) and wanted:
            first, last = wanted[0]
            yield from chunks(request.data[:last], min(send, client.chunk_bytes), start=first)

    def received() -> Iterator[v1.EvaluateStreamResponse]:
        for message in call:
            if message.WhichOneof("message") == "opened":
                wanted.append((message.opened.read_from_byte, message.opened.read_before_byte))
            heard.set()
            yield message

    call = client.start(messages())
    answer = read_all(call, received())
    heard.set()
    return answer


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
    small = st.integers(1, 6)
    source, result = ([draw(small) for _ in range(rank)] for _ in range(2))
    order = draw(st.permutations(range(rank)))
    other = order if draw(st.booleans()) else draw(st.permutations(range(rank)))
    steps = strides(draw, source, order)
    for axis in range(rank):
        if draw(st.integers(0, 4)) == 0:
            steps[axis] = 0
    number = draw(st.sampled_from(list(TYPES)))
    carried = math.prod(size for size, step in zip(source, steps, strict=True) if step)
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).standard_normal(carried).astype(TYPES[number])
    request = v1.EvaluateRequest(data=values.tobytes())
    name = draw(st.sampled_from(["dml_resample_grad", "dml_resample"]))
    mode = draw(st.sampled_from([1, 2]))
    getattr(request.operator, name).interpolation_mode = mode
    for descriptor, sizes, strided in (
        (request.input, source, steps),
        (request.output, result, strides(draw, result, other)),
    ):
        descriptor.MergeFromString(bytes([0x08, number]))
        descriptor.sizes[:] = sizes
        descriptor.strides[:] = strided
    return request


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_stream_gives_the_bits_of_evaluate_however_it_is_cut(
    clients: dict[int, SlabClient], data: st.DataObject
) -> None:
    request = data.draw(requests())
    whole = clients[2 << 20].evaluate(request)
    assert whole.refusal is None
    sizes = st.integers(1, 64)
    slab = data.draw(st.sampled_from(list(SLABS)))
    client = clients[slab]
    assert client.evaluate(request).data == whole.data
    cut = sliced(client, request, send=data.draw(sizes))
    assert cut.refusal is None
    assert cut.data == whole.data
    assert cut.output == whole.output
    assert cut.opened is not None
    start = data.draw(st.integers(0, len(whole.data) - 1))
    rest = resumed(
        client, request, start=start, digest=cut.opened.evaluation_digest, send=data.draw(sizes)
    )
    assert rest.refusal is None
    assert rest.data == whole.data[start:]
    assert rest.chunks[0][0] == start
    stop = data.draw(st.integers(start + 1, len(whole.data)))
    part = resumed(client, request, start=start, stop=stop, digest="", send=data.draw(sizes))
    assert part.refusal is None
    assert part.data == whole.data[start:stop]


def large(name: str, number: int) -> v1.EvaluateRequest:
    """Make a tensor of several slabs of 1000 bytes."""
    shapes = {
        "interpolate_backward": ((1, 3, 16, 9), (1, 3, 8, 7)),
        "interpolate": ((1, 3, 8, 7), (1, 3, 16, 9)),
    }
    source, result = shapes[name]
    values = np.random.default_rng(7).standard_normal(source).astype(TYPES[number])
    request = v1.EvaluateRequest(data=values.tobytes())
    attributes = getattr(request.operator, name)
    attributes.mode = v1.Interpolate.MODE_BILINEAR
    attributes.data_format = v1.Interpolate.DATA_FORMAT_NCX
    attributes.sizes[:] = (shapes["interpolate"][1] if name == "interpolate" else source)[2:]
    request.input.MergeFromString(bytes([0x08, number]))
    request.output.MergeFromString(bytes([0x08, number]))
    request.input.sizes[:] = source
    request.output.sizes[:] = result
    return request


# Any two of an operator, a type and a slab meet.
TRIPLES = [
    (("interpolate_backward", "interpolate")[(at + turn) % 2], number, slab)
    for at, number in enumerate(TYPES)
    for turn, slab in enumerate((1, 1000, 2 << 20))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number", "slab"), TRIPLES)
def test_single_bytes_in_and_out_give_the_bits_of_evaluate(
    clients: dict[int, SlabClient], name: str, number: int, slab: int
) -> None:
    request = large(name, number)
    whole = clients[2 << 20].evaluate(request).data
    assert clients[slab].evaluate(request).data == whole
    for send in (len(request.data), 99, 1):
        assert sliced(clients[slab], request, send=send).data == whole


@pytest.mark.parametrize("slab", [1, 1000])
def test_every_cut_and_resume_point_of_the_published_example(
    clients: dict[int, SlabClient], slab: int
) -> None:
    request = published_request()
    client = clients[slab]
    whole = client.evaluate(request).data
    first = sliced(client, request, send=12)
    assert first.opened is not None
    digest = first.opened.evaluation_digest
    for size in range(1, 17):
        assert sliced(client, request, send=size).data == whole
        rest = resumed(client, request, start=size - 1, digest=digest, send=size)
        assert rest.data == whole[size - 1 :]


@pytest.mark.parametrize("slab", SLABS)
def test_a_fresh_stream_starts_at_byte_0_even_where_the_first_bytes_do_not_matter(
    clients: dict[int, SlabClient], slab: int
) -> None:
    # Nearest: the one result element reads the middle one of three.
    request = identity_request(3, data=np.array([7, 8, 9], "<f4").tobytes())
    mode = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR
    request.operator.dml_resample.interpolation_mode = mode
    request.output.sizes[:] = [1]
    answer = sliced(clients[slab], request, send=5)
    assert answer.refusal is None
    assert answer.opened is not None
    assert answer.opened.read_from_byte == 0
    assert answer.data == request.data[4:8]


def test_a_part_of_the_result_reads_only_what_it_needs(clients: dict[int, SlabClient]) -> None:
    request = large("interpolate_backward", v1.DataType.DATA_TYPE_FLOAT32)
    whole = clients[2 << 20].evaluate(request).data
    answer = resumed(clients[1000], request, start=len(whole) - 1, digest="", send=100)
    assert answer.opened is not None
    # Some rows of the last of three planes.
    assert answer.opened.read_from_byte >= len(request.data) * 2 // 3
    assert answer.data == whole[-1:]
    row = len(whole) // 24  # the first of 8 in each of 3 planes
    for client, most in ((clients[1], 1 / 6), (clients[2 << 20], 1 / 3)):
        answer = resumed(client, request, start=0, stop=row, digest="", send=100)
        assert answer.opened is not None
        assert answer.opened.read_from_byte == 0
        assert 0 < answer.opened.read_before_byte <= len(request.data) * most
        assert answer.data == whole[:row]


def test_equal_evaluations_have_equal_digests_on_all_servers_and_others_are_not_resumed(
    clients: dict[int, SlabClient],
) -> None:
    request = large("interpolate", v1.DataType.DATA_TYPE_FLOAT16)
    digests = set[str]()
    for client in clients.values():
        answer = sliced(client, request, send=500)
        assert answer.opened is not None
        digests.add(answer.opened.evaluation_digest)
    (digest,) = digests
    answer = resumed(clients[1000], published_request(), start=4, digest=digest, send=5)
    ended(answer, "EVALUATION_CHANGED")


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
