"""A descriptor tells how an array travels; what cannot travel, or hold a result, is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from gradwire import v1
from gradwire.errors import InvalidRequestError
from gradwire.tensors import (
    DTYPES,
    WireView,
    check_out,
    check_sizes,
    data_type_of,
    describe,
    empty_result,
    result_descriptor,
    strides_of,
    to_array,
    wire_axes,
    wire_bytes,
)
from support.strided_arrays import Array, arrays

FLOAT32 = v1.DataType.DATA_TYPE_FLOAT32


@given(arrays())
def test_a_descriptor_tells_of_no_padding_and_no_direction(array: Array) -> None:
    descriptor = describe(array)
    assert tuple(descriptor.sizes) == array.shape
    assert DTYPES[descriptor.data_type] == array.dtype.newbyteorder("=")
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
    assert [a for a in wire_axes(source) if a in axes] == [
        a for a in axes if a in wire_axes(source)
    ]
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


def test_a_broadcast_sliding_window_sends_each_window_once() -> None:
    windows = np.broadcast_to(sliding_window_view(np.arange(6, dtype=np.float32), 3), (5, 4, 3))
    assert list(describe(windows).strides) == [0, 3, 1]
    view = WireView(windows)
    assert bytes(view.read(0, view.nbytes)) == windows[0].tobytes()


INTERLEAVED = as_strided(np.arange(6, dtype=np.float32), (2, 3), (12, 8))
WINDOWS = sliding_window_view(np.arange(6, dtype=np.float32), 3)


@pytest.mark.parametrize("array", [WINDOWS, INTERLEAVED], ids=["sliding window", "interleaved"])
def test_axes_that_overlap_travel_row_major(array: Array) -> None:
    assert not describe(array).strides
    view = WireView(array)
    assert bytes(view.read(0, view.nbytes)) == array.tobytes()


def test_counts_do_not_overflow() -> None:
    huge = v1.TensorDescriptor(data_type=FLOAT32, sizes=[2**40] * 8)
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
    (np.zeros(3, np.int32), "input.data_type", "is int32; convert it to one of float32, float16"),
    (np.zeros(3, np.complex64), "input.data_type", "is complex64"),
    (np.zeros(3, np.longdouble), "input.data_type", "convert it to one of"),
    (np.zeros(3, bool), "input.data_type", "is bool"),
    ([1, 2], "input.data_type", "is int64"),
    (["a"], "input.data_type", "is <U1"),
    (None, "array", "is None; give a NumPy array or a tensor"),
    ([None], "input.data_type", "is object"),
    (1.5, "input.sizes", "has 0 axes; give 1 to 8"),
    (np.zeros((1,) * 9, np.float32), "input.sizes", "has 9 axes; give 1 to 8"),
]


@pytest.mark.parametrize(("values", "field", "words"), REFUSED, ids=lambda each: repr(each)[:30])
def test_what_the_wire_cannot_carry_is_refused_by_name(values: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        describe(to_array(values))
    assert caught.value.field == field
    assert words in caught.value.description


@pytest.mark.parametrize(
    ("sizes", "at"),
    [((), ""), ((1,) * 9, ""), ((2, -1), "[1]"), ((2.0,), "[0]"), ((2**63,), "[0]")],
)
def test_sizes_that_are_none_are_refused(sizes: Any, at: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_sizes("output", sizes)
    assert caught.value.field == f"output.sizes{at}"


def test_sizes_come_back_as_plain_integers() -> None:
    sizes: Any = np.array([2, 3])
    assert [type(n) for n in check_sizes("output", sizes)] == [int, int]


def test_a_list_of_floats_is_float64() -> None:
    assert data_type_of(to_array([[1.0, 2.0]]).dtype) == v1.DataType.DATA_TYPE_FLOAT64


def test_a_memmap_is_viewed_and_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "values.npy"
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(3, 4))
    assert np.shares_memory(to_array(mapped), mapped)
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
    with pytest.raises(TypeError, match=r"out is a list; give a numpy\.ndarray"):
        check_out([0.0], dtype=np.float64, shape=(1,), source=SOURCE)


def test_an_out_may_lie_between_the_elements_of_the_input() -> None:
    both = np.zeros(8, np.float32)
    check_out(both[::2], dtype=np.float32, shape=(4,), source=both[1::2])


def test_an_out_of_the_other_byte_order_is_written_as_such() -> None:
    out = check_out(np.zeros(2, ">f4"), dtype=np.float32, shape=(2,), source=SOURCE)
    WireView(out).write(0, np.array([1, 2], "<f4").tobytes())
    assert out.tolist() == [1.0, 2.0]
