"""Any range of an array's bytes is read and written in wire order, whatever its strides."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from gradwire import v1
from gradwire.tensors import WireView, describe, result_descriptor, wire_axes, wire_bytes
from sdk.strided_arrays import Array, arrays, wire_bytes_of


@given(arrays())
def test_the_bytes_are_those_of_the_definition(array: Array) -> None:
    descriptor = describe(array)
    view = WireView(array)
    assert view.nbytes == wire_bytes(descriptor)
    assert bytes(view.read(0, view.nbytes)) == wire_bytes_of(array, descriptor)


@given(arrays(), st.data())
def test_what_lies_in_wire_order_is_viewed_and_nothing_else(
    array: Array, data: st.DataObject
) -> None:
    view = WireView(array)
    start = data.draw(st.integers(0, view.nbytes))
    stop = data.draw(st.integers(start, view.nbytes))
    part = view.in_place(start, stop)
    if part is None:
        assert not array.flags.c_contiguous or array.dtype != array.dtype.newbyteorder("<")
    else:
        assert part.tobytes() == bytes(view.read(start, stop))
        assert start == stop or np.shares_memory(part, array)


@given(arrays(), st.data())
def test_any_range_of_bytes_is_a_slice_of_the_whole(array: Array, data: st.DataObject) -> None:
    view = WireView(array)
    whole = bytes(view.read(0, view.nbytes))
    start = data.draw(st.integers(0, view.nbytes))
    stop = data.draw(st.integers(start, view.nbytes))
    part = view.read(start, stop)
    assert (part.format, part.ndim, bytes(part)) == ("B", 1, whole[start:stop])


@given(arrays(), st.integers(1, 100), st.data())
def test_a_chunk_has_three_quarters_of_the_bytes_it_may_have(
    array: Array, size: int, data: st.DataObject
) -> None:
    view = WireView(array)
    start = data.draw(st.integers(0, view.nbytes))
    stop = view.chunk_stop(start, size)
    assert start + 0.75 * size <= stop <= start + size or stop == view.nbytes <= start + size


def test_a_chunk_ends_with_the_largest_block_of_inner_axes_that_fits() -> None:
    view = WireView(np.empty((4, 6, 10, 10), np.float32))
    channel, image = 400, 2400
    assert view.chunk_stop(0, 2 * image + 399) == 2 * image
    assert view.chunk_stop(0, image - 1) == 5 * channel
    assert view.chunk_stop(0, 399) == 9 * 40
    assert view.chunk_stop(40, image) == image
    assert view.chunk_stop(3 * image, 2 * image) == view.nbytes


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
    pieces = data.draw(st.permutations(list(pairwise(edges))))
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


def test_a_contiguous_array_is_read_by_reference() -> None:
    array = np.zeros((4, 6), np.float32).T
    part = np.asarray(WireView(array).read(8, 64))
    assert np.shares_memory(part, array)
    assert part.nbytes == 56


def test_a_read_only_array_gives_read_only_bytes() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert WireView(array).read(0, 16).readonly


def traced_peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_part_of_a_strided_array_needs_memory_for_the_part_only() -> None:
    padded = as_strided(np.zeros((1024, 64, 2), np.float32), (1024, 64), (512, 8))
    view = WireView(padded)
    assert view.nbytes == 262_144
    assert traced_peak(lambda: view.read(1001, 5001)) < 20_000
    assert traced_peak(lambda: view.write(1001, bytes(4000))) < 20_000


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
