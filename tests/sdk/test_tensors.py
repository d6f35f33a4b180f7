"""Any array travels in wire order, any range of its bytes at a time, and comes back the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from gradwire import v1
from gradwire.errors import InvalidRequestError
from gradwire.tensors import (
    DTYPES,
    WireView,
    as_array,
    check_out,
    check_sizes,
    data_type_of,
    describe,
    element_count,
    empty_result,
    result_descriptor,
    strides_of,
    wire_axes,
    wire_bytes,
)

Array = NDArray[Any]
FLOAT32 = v1.DataType.DATA_TYPE_FLOAT32


@st.composite
def arrays(draw: st.DrawFn, *, broadcast: bool = True) -> Array:
    """Random bits, of any type, byte order, axis order, padding, direction and alignment."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    if dtype.kind == "f":
        dtype = dtype.newbyteorder(draw(st.sampled_from("<>")))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    buffer_shape = [n * draw(st.integers(1, 2)) + draw(st.integers(0, 1)) for n in shape]
    misaligned = draw(st.sampled_from([0, 1]))
    seed = draw(st.integers(0, 2**32 - 1))
    size = math.prod(buffer_shape) * dtype.itemsize + misaligned
    buffer = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    array: Array = buffer[misaligned:].view(dtype).reshape(buffer_shape)
    for axis, (n, wide) in enumerate(zip(shape, buffer_shape, strict=True)):
        step = draw(st.integers(1, wide // n))
        backward = draw(st.booleans())
        window = [slice(None)] * array.ndim
        window[axis] = slice(n * step - 1, None, -step) if backward else slice(0, n * step, step)
        array = array[tuple(window)]
    for axis in range(len(shape)) if broadcast else ():
        if draw(st.integers(0, 3)) == 0:
            first = np.moveaxis(np.moveaxis(array, axis, 0)[:1], 0, axis)
            array = np.broadcast_to(first, shape)
    return array.transpose(draw(st.permutations(range(len(shape)))))


def wire_bytes_of(array: Array, descriptor: v1.TensorDescriptor) -> bytes:
    """The definition, element by element: ascending addresses of the packed array it describes."""
    by_address: dict[int, bytes] = {}
    little = array.astype(array.dtype.newbyteorder("<"))
    strides = strides_of(descriptor)
    for index in np.ndindex(*array.shape):
        address = sum(i * s for i, s in zip(index, strides, strict=True) if s)
        by_address.setdefault(address, little[index].tobytes())
    return b"".join(by_address[address] for address in sorted(by_address))


@given(arrays())
def test_the_bytes_are_those_of_the_definition(array: Array) -> None:
    descriptor = describe(array)
    view = WireView(array)
    assert view.nbytes == wire_bytes(descriptor)
    assert bytes(view.read(0, view.nbytes)) == wire_bytes_of(array, descriptor)


@given(arrays(), st.data())
def test_any_range_of_bytes_is_a_slice_of_the_whole(array: Array, data: st.DataObject) -> None:
    view = WireView(array)
    whole = bytes(view.read(0, view.nbytes))
    start = data.draw(st.integers(0, view.nbytes))
    stop = data.draw(st.integers(start, view.nbytes))
    part = view.read(start, stop)
    assert (part.format, part.ndim, bytes(part)) == ("B", 1, whole[start:stop])


@given(arrays())
def test_every_split_of_the_bytes_joins_to_the_whole(array: Array) -> None:
    view = WireView(array)
    whole = bytes(view.read(0, view.nbytes))
    for split in range(view.nbytes + 1):
        assert bytes(view.read(0, split)) + bytes(view.read(split, view.nbytes)) == whole


@given(arrays(broadcast=False), st.data())
def test_what_is_written_in_pieces_reads_back_whole(array: Array, data: st.DataObject) -> None:
    out = array.copy("K") if data.draw(st.booleans()) else array
    view = WireView(out)
    whole = data.draw(st.binary(min_size=view.nbytes, max_size=view.nbytes))
    cuts = data.draw(st.lists(st.integers(0, view.nbytes), max_size=6))
    edges = sorted({0, *cuts, view.nbytes})
    pieces = data.draw(st.permutations(list(zip(edges, edges[1:], strict=False))))
    for start, stop in pieces:
        view.write(start, memoryview(whole)[start:stop])
    assert bytes(view.read(0, view.nbytes)) == whole
    assert wire_bytes_of(out, describe(out)) == whole


@given(arrays(broadcast=False), st.data())
def test_a_write_changes_no_other_byte(array: Array, data: st.DataObject) -> None:
    view = WireView(array)
    before = bytearray(view.read(0, view.nbytes))
    start = data.draw(st.integers(0, view.nbytes))
    piece = data.draw(st.binary(max_size=view.nbytes - start))
    view.write(start, piece)
    before[start : start + len(piece)] = piece
    assert bytes(view.read(0, view.nbytes)) == bytes(before)


@given(arrays(broadcast=False), arrays(broadcast=False))
def test_an_array_travels_in_the_axis_order_of_another_descriptor(one: Array, other: Array) -> None:
    order = result_descriptor(describe(other), [2] * other.ndim)
    array = np.resize(one, [2] * other.ndim)
    view = WireView(array, v1.TensorDescriptor(sizes=array.shape, strides=order.strides))
    transposed = array.transpose(wire_axes(order))
    expected = np.ascontiguousarray(transposed).astype(array.dtype.newbyteorder("<")).tobytes()
    assert bytes(view.read(0, view.nbytes)) == expected


@given(arrays())
def test_a_descriptor_tells_of_no_padding_and_no_direction(array: Array) -> None:
    descriptor = describe(array)
    assert tuple(descriptor.sizes) == array.shape
    assert DTYPES[descriptor.data_type] == array.dtype.newbyteorder("=")
    assert element_count(descriptor) == array.size
    strides = strides_of(descriptor)
    assert [n > 1 and s == 0 for n, s in zip(array.shape, strides, strict=True)] == [
        n > 1 and s == 0 for n, s in zip(array.shape, array.strides, strict=True)
    ]
    axes = wire_axes(descriptor)
    packed = [math.prod(array.shape[inner] for inner in axes[i + 1 :]) for i in range(len(axes))]
    assert [strides[axis] for axis in axes] == packed
    assert [abs(array.strides[axis]) for axis in axes] == sorted(
        (abs(array.strides[axis]) for axis in axes), reverse=True
    )


@given(arrays(broadcast=False))
def test_an_empty_result_has_the_axis_order_it_was_described_with(array: Array) -> None:
    descriptor = describe(array)
    result = empty_result(descriptor)
    assert (result.dtype, result.shape) == (array.dtype.newbyteorder("="), array.shape)
    assert describe(result) == descriptor
    assert np.shares_memory(result, np.asarray(WireView(result).read(0, 1)))


@given(arrays(), st.data())
def test_a_result_nests_as_its_source_does(array: Array, data: st.DataObject) -> None:
    source = describe(array)
    sizes = data.draw(
        st.lists(st.integers(1, 5), min_size=array.ndim, max_size=array.ndim), label="sizes"
    )
    result = result_descriptor(source, sizes)
    assert (result.data_type, list(result.sizes)) == (source.data_type, sizes)
    assert math.prod(sizes) * array.itemsize == wire_bytes(result)
    axes = wire_axes(result)
    assert [a for a in wire_axes(source) if a in axes] == [a for a in axes if a in wire_axes(source)]
    if not source.strides:
        assert not result.strides


def test_a_row_major_array_needs_no_strides() -> None:
    array = np.zeros((2, 1, 3), np.float16)
    assert describe(array) == v1.TensorDescriptor(
        data_type=v1.DataType.DATA_TYPE_FLOAT16, sizes=[2, 1, 3]
    )


def test_channels_last_keeps_its_order() -> None:
    channels_last = np.zeros((2, 5, 7, 3), np.float32).transpose(0, 3, 1, 2)
    assert list(describe(channels_last).strides) == [105, 1, 21, 3]
    result = result_descriptor(describe(channels_last), (2, 3, 10, 14))
    assert list(result.strides) == [420, 1, 42, 3]


def test_one_element_stands_for_a_broadcast_gradient() -> None:
    ones = np.broadcast_to(np.float32(1), (8, 64, 112, 112))
    assert list(describe(ones).strides) == [0, 0, 0, 0]
    view = WireView(ones)
    assert bytes(view.read(0, view.nbytes)) == np.float32(1).tobytes()
    assert not result_descriptor(describe(ones), (8, 64, 56, 56)).strides


def test_a_sliding_window_travels_row_major() -> None:
    windows = sliding_window_view(np.arange(6, dtype=np.float32), 3)
    assert not describe(windows).strides
    view = WireView(windows)
    assert bytes(view.read(0, view.nbytes)) == windows.tobytes()


def test_a_broadcast_sliding_window_sends_each_window_once() -> None:
    windows = np.broadcast_to(sliding_window_view(np.arange(6, dtype=np.float32), 3), (5, 4, 3))
    assert list(describe(windows).strides) == [0, 3, 1]
    view = WireView(windows)
    assert bytes(view.read(0, view.nbytes)) == windows[0].tobytes()


def test_interleaved_axes_travel_row_major() -> None:
    interleaved = as_strided(np.arange(6, dtype=np.float32), (2, 3), (12, 8))
    assert not describe(interleaved).strides
    assert bytes(WireView(interleaved).read(0, 24)) == interleaved.tobytes()


def test_a_contiguous_array_is_read_by_reference() -> None:
    array = np.zeros((4, 6), np.float32).T
    part = np.asarray(WireView(array).read(8, 64))
    assert np.shares_memory(part, array)
    assert part.nbytes == 56


def test_a_read_only_array_gives_read_only_bytes() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert WireView(array).read(0, 16).readonly


def test_reading_a_strided_array_needs_memory_for_the_range_only(
    traced_peak: Callable[[Callable[[], object]], int],
) -> None:
    array = np.broadcast_to(np.float32(1), (1024, 1024, 64))
    shown = as_strided(np.zeros((1024, 64, 2), np.float32), (1024, 64), (512, 8))
    assert array.nbytes > shown.nbytes
    view = WireView(shown)
    assert traced_peak(lambda: view.read(1001, 5001)) < 20_000
    assert traced_peak(lambda: view.write(1001, bytes(4000))) < 20_000


@pytest.fixture
def traced_peak() -> Callable[[Callable[[], object]], int]:
    def peak(call: Callable[[], object]) -> int:
        import tracemalloc  # noqa: PLC0415

        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return peak


def test_signalling_nans_keep_their_bits() -> None:
    bits = np.array([[0x7F800001, 0xFFA00000], [0x7FC12345, 1]], np.uint32)
    array = bits.view(np.float32).T[::-1]
    view = WireView(array)
    assert bytes(view.read(0, 16)) == bits[:, ::-1].tobytes()
    out = np.zeros((2, 2), np.float32)[::-1]
    WireView(out).write(0, view.read(0, 16))
    assert out.view(np.uint32).tolist() == bits[:, ::-1].tolist()


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (0, 17), (8, 4)])
def test_a_range_outside_the_array_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"bytes {start} to {stop} of an array of 16"):
        WireView(np.zeros(4, np.float32)).read(start, stop)


def test_writing_past_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes 15 to 17 of an array of 16"):
        WireView(np.zeros(4, np.float32)).write(15, b"ab")


def test_a_descriptor_of_other_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes \[3\], array \(4,\)"):
        WireView(np.zeros(4, np.float32), v1.TensorDescriptor(sizes=[3]))


def test_counts_do_not_overflow() -> None:
    huge = v1.TensorDescriptor(data_type=FLOAT32, sizes=[2**40] * 8)
    assert element_count(huge) == 2**320
    assert wire_bytes(huge) == 2**322
    assert strides_of(huge)[0] == 2**280


@pytest.mark.parametrize(
    ("strides", "axes", "elements"),
    [([], (0, 2), 6), ([30, 0, 10], (0, 2), 6), ([1, 7, 2], (2, 0), 6), ([0, 0, 5], (2,), 3)],
)
def test_the_wire_carries_axes_by_descending_stride(
    strides: list[int], axes: tuple[int, ...], elements: int
) -> None:
    descriptor = v1.TensorDescriptor(data_type=FLOAT32, sizes=[2, 1, 3], strides=strides)
    assert wire_axes(descriptor) == axes
    assert wire_bytes(descriptor) == 4 * elements


REFUSED: list[tuple[Any, str, str]] = [
    (np.zeros(3, np.int32), "input.data_type", "is int32; give one of float32, float16, bfloat16"),
    (np.zeros(3, np.complex64), "input.data_type", "is complex64"),
    (np.zeros(3, np.longdouble), "input.data_type", "give one of"),
    (np.zeros(3, bool), "input.data_type", "is bool"),
    ([1, 2], "input.data_type", "is int64"),
    (["a"], "input.data_type", "is <U1"),
    (None, "input.data_type", "is object"),
    (1.5, "input.sizes", "has 0 axes; give 1 to 8"),
    (np.zeros((1,) * 9, np.float32), "input.sizes", "has 9 axes; give 1 to 8"),
    (np.zeros((2, 0), np.float32), "input.sizes[1]", "is 0; give an integer from 1"),
]


@pytest.mark.parametrize(("values", "field", "words"), REFUSED, ids=lambda each: repr(each)[:30])
def test_what_the_wire_cannot_carry_is_refused_by_name(values: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        as_array(values)
    assert caught.value.field == field
    assert words in caught.value.description


@pytest.mark.parametrize(
    ("sizes", "field"),
    [((), "output.sizes"), ((2, -1), "output.sizes[1]"), ((2.0,), "output.sizes[0]")]
    + [((2**63,), "output.sizes[0]"), ((1,) * 9, "output.sizes")],
)
def test_sizes_that_are_none_are_refused(sizes: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_sizes("output", sizes)
    assert caught.value.field == field


def test_sizes_come_back_as_plain_integers() -> None:
    assert [type(n) for n in check_sizes("output", np.array([2, 3]))] == [int, int]


def test_a_list_of_floats_is_float64() -> None:
    assert data_type_of(as_array([[1.0, 2.0]]).dtype) == v1.DataType.DATA_TYPE_FLOAT64


def test_a_memmap_is_viewed_and_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "values.npy"
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(3, 4))
    assert np.shares_memory(as_array(mapped), mapped)
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = check_out(mapped, dtype=np.float32, shape=(3, 4), source=source)
    WireView(out).write(0, WireView(source).read(0, 48))
    mapped.flush()
    assert np.load(path).tolist() == source.tolist()


def read_only() -> Array:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


SOURCE = np.zeros(8, np.float32)
BAD_OUTS: list[tuple[Array, str]] = [
    (np.zeros(4), "has dtype float64; the result has float32"),
    (np.zeros((4, 1), np.float32), r"has shape \(4, 1\); the result has \(4,\)"),
    (read_only(), "is read-only"),
    (SOURCE[2:6], "shares memory with the input"),
    (as_strided(np.zeros(1, np.float32), (4,), (0,)), r"has strides \(0,\) that overlap"),
    (as_strided(np.zeros(4, np.float32), (4,), (2,)), r"has strides \(2,\) that overlap"),
]


@pytest.mark.parametrize(("out", "words"), BAD_OUTS, ids=[words for _, words in BAD_OUTS])
def test_an_out_that_cannot_hold_the_result_is_refused(out: Array, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        check_out(out, dtype=np.float32, shape=(4,), source=SOURCE)
    assert isinstance(caught.value, ValueError)
    assert caught.value.field == "out"


def test_an_out_that_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match="out is a list; give a numpy.ndarray"):
        check_out([0.0], dtype=np.float64, shape=(1,), source=SOURCE)


def test_an_out_may_lie_between_the_elements_of_the_input() -> None:
    both = np.zeros(8, np.float32)
    check_out(both[::2], dtype=np.float32, shape=(4,), source=both[1::2])


def test_an_out_of_the_other_byte_order_is_written_as_such() -> None:
    out = check_out(np.zeros(2, ">f4"), dtype=np.float32, shape=(2,), source=SOURCE)
    WireView(out).write(0, np.array([1, 2], "<f4").tobytes())
    assert out.tolist() == [1.0, 2.0]
