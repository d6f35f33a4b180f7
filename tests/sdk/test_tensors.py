"""Arrays and tensors of any library, their descriptors, and their bytes in wire order."""

import math
import sys
import tracemalloc
from array import array as typed_array
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from gradwire import v1
from gradwire.errors import InvalidRequestError
from gradwire.tensors import (
    DTYPES,
    WireView,
    check_out,
    describe,
    empty_result,
    result_descriptor,
    strides_of,
    to_array,
    wire_axes,
    wire_bytes,
)
from support.clients import COPY
from support.examples import examples
from support.oracles.oracles import same_bits


@st.composite
def arrays(draw, *, broadcast=True):
    """Draw arrays of any type, byte order, axis order, padding, direction and alignment."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    if dtype.kind == "f":
        dtype = dtype.newbyteorder("<" if draw(st.booleans()) else ">")
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    buffer_shape = [n * draw(st.integers(1, 2)) + draw(st.integers(0, 1)) for n in shape]
    misaligned = draw(st.sampled_from([0, 1]))
    seed = draw(st.integers(0, 2**32 - 1))
    size = math.prod(buffer_shape) * dtype.itemsize + misaligned
    buffer = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    array = buffer[misaligned:].view(dtype).reshape(buffer_shape)
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


def wire_bytes_of(array, descriptor):
    """Follow the definition of the wire order, element by element, over packed addresses."""
    by_address = {}
    little = array.astype(array.dtype.newbyteorder("<"))
    strides = strides_of(descriptor)
    for index in np.ndindex(*array.shape):
        address = sum(i * s for i, s in zip(index, strides, strict=True) if s)
        by_address.setdefault(address, little[index].tobytes())
    return b"".join(by_address[address] for address in sorted(by_address))


def whole(array):
    view = WireView(array)
    return bytes(view.read(0, view.nbytes))


@given(arrays())
def test_a_descriptor_tells_of_no_padding_and_no_direction(array):
    descriptor = describe(array)
    assert tuple(descriptor.sizes) == array.shape
    assert DTYPES[descriptor.data_type] == array.dtype.newbyteorder("=")
    strides, axes = strides_of(descriptor), wire_axes(descriptor)
    triples = zip(array.shape, strides, array.strides, strict=True)
    assert all((s == 0) == (held == 0) for n, s, held in triples if n > 1)
    packed = [math.prod(array.shape[inner] for inner in axes[i + 1 :]) for i in range(len(axes))]
    assert [strides[axis] for axis in axes] == packed
    steps = [abs(array.strides[axis]) for axis in axes]
    assert steps == sorted(steps, reverse=True)


@given(arrays(broadcast=False))
def test_an_empty_result_has_the_axis_order_it_was_described_with(array):
    descriptor = describe(array)
    result = empty_result(descriptor)
    assert (result.dtype, result.shape) == (array.dtype.newbyteorder("="), array.shape)
    assert describe(result) == descriptor
    assert np.shares_memory(result, np.asarray(WireView(result).read(0, 1)))


@given(arrays(), st.data())
def test_a_result_nests_as_its_source_does(array, data):
    source = describe(array)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=array.ndim, max_size=array.ndim))
    result = result_descriptor(source, sizes)
    assert (result.data_type, list(result.sizes)) == (source.data_type, sizes)
    assert math.prod(sizes) * array.itemsize == wire_bytes(result)
    axes, source_axes = wire_axes(result), wire_axes(source)
    assert [a for a in source_axes if a in axes] == [a for a in axes if a in source_axes]
    assert source.strides or not result.strides


WINDOWS = sliding_window_view(np.arange(6, dtype=np.float32), 3)
# Arrays with the strides of their descriptor, and the array whose bytes travel.
EXAMPLES = {
    "one element for all": (np.broadcast_to(np.float32(1), (8, 64)), [0, 0], np.ones(1, "f4")),
    # Axes that overlap travel row-major.
    "sliding window": (WINDOWS, [], WINDOWS),
    # Each window is sent once.
    "broadcast window": (np.broadcast_to(WINDOWS, (5, 4, 3)), [0, 3, 1], WINDOWS),
}


def test_no_gap_and_nothing_twice_travels():
    for name, (array, strides, sent) in EXAMPLES.items():
        assert list(describe(array).strides) == strides, name
        assert whole(array) == sent.tobytes(), name


def test_what_the_wire_cannot_carry_is_refused_by_name():
    for values, field, words in (
        (np.zeros(3, np.int32), "input.data_type", "is int32; convert it to one of float32"),
        (np.zeros(3, np.longdouble), "input.data_type", "convert it to one of"),
        *((["a"], "input.data_type", "is <U1"), ([None], "input.data_type", "is object")),
        (None, "array", "is None; give a NumPy array or a tensor"),
        (1.5, "input.sizes", "has 0 axes; give 1 to 8"),
        (np.zeros((1,) * 9, np.float32), "input.sizes", "has 9 axes; give 1 to 8"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            describe(to_array(values))
        assert caught.value.field == field, values
        assert words in caught.value.description


def test_an_out_may_lie_between_elements_of_the_input_and_its_own_do_not_overlap():
    both = np.zeros(8, np.float32)
    check_out(both[::2], dtype=np.float32, shape=(4,), source=both[1::2])
    for stride in (0, 2):
        out = as_strided(np.zeros(4, np.float32), (4,), (stride,))
        with pytest.raises(ValueError, match="that overlap") as caught:
            check_out(out, dtype=np.float32, shape=(4,), source=both)
        assert isinstance(caught.value, InvalidRequestError)
        assert caught.value.field == "out"


VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CPU, CUDA, CUDA_HOST = 1, 2, 3


def by_dlpack(device, *, copies=False, **more):
    """Make a tensor with DLPack on some device, which may copy itself to the host."""

    def dlpack(_, *, dl_device=None, **__):
        if device == CUDA and not (copies and dl_device == (CPU, 0)):
            raise BufferError("the memory is on a CUDA device")
        return VALUES.__dlpack__()

    # NumPy 2.0 looks for them in the class.
    methods = {"__dlpack__": dlpack, "__dlpack_device__": lambda _: (device, 0)}
    return type("Tensor", (SimpleNamespace,), methods)(**more)


def on_device(**more):
    """Make an array as CuPy has it: no implicit way to the host."""

    def array(*_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    return by_dlpack(CUDA, __array__=array, **more)


def by_array(*_, **__):
    return VALUES


HOST_EXPORTERS = {
    "__array__": SimpleNamespace(__array__=by_array),
    "__array_interface__": SimpleNamespace(__array_interface__=VALUES.__array_interface__),
    "DLPack": by_dlpack(CPU),
    "DLPack on pinned memory": by_dlpack(CUDA_HOST),
    "the buffer protocol": VALUES.data,
    "a matrix": VALUES.reshape(6, 4).view(np.matrix),
    "a memmap's view": VALUES.view(np.memmap),
    "of a graph": SimpleNamespace(requires_grad=True, detach=by_array),
}
# Memory of a device is copied as its library documents.
COPIED = {
    "as torch": on_device(cpu=by_array),
    "as CuPy": on_device(get=by_array),
    "as JAX": SimpleNamespace(__array__=by_array, __dlpack_device__=lambda: (CUDA, 0)),
    "a list of lists": VALUES.tolist(),
    "an array of Python": typed_array("d", VALUES.reshape(-1).tolist()),
}
# NumPy 2.0 asks no device for a copy.
if not np.__version__.startswith("2.0"):
    COPIED["by DLPack"] = by_dlpack(CUDA, copies=True)


def test_memory_of_the_host_is_viewed_and_other_memory_copied():
    for name, exporter in {**HOST_EXPORTERS, **COPIED}.items():
        array = to_array(exporter)
        assert type(array) is np.ndarray, name
        assert array.reshape(-1).tolist() == VALUES.reshape(-1).tolist(), name
        wanted = np.float64 if "Python" in name or "list" in name else np.float32
        assert array.dtype == wanted, name
        assert np.shares_memory(array, VALUES) or name in COPIED, name


def fail(error=RuntimeError):
    raise error("lost device")


def test_what_cannot_be_read_is_refused_with_the_fix():
    for value, words in (
        (by_dlpack(CUDA), r"Tensor .* pass a NumPy array or a tensor on"),
        (on_device(cpu=fail), "lost device; pass a NumPy array"),
        (np.ma.masked_invalid([1.0, np.nan]), r"pass array\.filled"),
        ([[1.0, 2.0], [3.0]], "cannot read a list as an array"),
    ):
        with pytest.raises(TypeError, match=words) as caught:
            to_array(value)
        assert isinstance(caught.value.__cause__, RuntimeError) or "lost" not in words
    # Lack of memory stays what it is.
    with pytest.raises(MemoryError):
        to_array(on_device(cpu=lambda: fail(MemoryError)))


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16"])
def test_torch_tensors_of_every_type_and_layout_are_viewed(name):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    tensor = torch.arange(24, dtype=getattr(torch, name)).reshape(2, 3, 4).requires_grad_()
    for shown in (tensor, tensor.permute(2, 0, 1), tensor[:, ::2], tensor[:1].expand(5, 3, 4)):
        array = to_array(shown)
        assert array.dtype == np.dtype(getattr(ml_dtypes, name, name))
        assert array.strides == tuple(array.itemsize * stride for stride in shown.stride())
        assert array.astype(float).tolist() == shown.double().tolist()
        assert array.ctypes.data == shown.data_ptr()
    # Without memory.
    with pytest.raises(TypeError, match=r"torch\.Tensor as an array.*pass a NumPy array"):
        to_array(torch.zeros(3, device="meta"))


@given(arrays(), st.data())
def test_any_range_has_the_bytes_of_the_definition_viewed_where_they_lie_so(array, data):
    view, descriptor = WireView(array), describe(array)
    assert view.nbytes == wire_bytes(descriptor)
    defined = wire_bytes_of(array, descriptor)
    start = data.draw(st.integers(0, view.nbytes))
    stop = data.draw(st.integers(start, view.nbytes))
    part = view.read(start, stop)
    assert (part.format, part.ndim, bytes(part)) == ("B", 1, defined[start:stop])
    if view.in_place is None:
        assert not array.flags.c_contiguous or array.dtype != array.dtype.newbyteorder("<")
    else:
        assert view.in_place[start:stop].tobytes() == defined[start:stop]
        assert start == stop or np.shares_memory(view.in_place[start:stop], array)


@given(arrays(), st.integers(1, 100), st.data())
def test_chunks_have_three_quarters_of_the_bytes_they_may_have_after_the_first(array, size, data):
    view = WireView(array)
    start = data.draw(st.integers(0, view.nbytes))
    stop = view.chunk_stop(start, size)
    while stop < view.nbytes:
        assert start < stop <= start + size
        start, stop = stop, view.chunk_stop(stop, size)
        assert start + 0.75 * size <= stop <= start + size or stop == view.nbytes <= start + size


@given(arrays(broadcast=False), st.data())
def test_a_write_changes_no_other_byte(array, data):
    view = WireView(array)
    before = bytearray(whole(array))
    start = data.draw(st.integers(0, view.nbytes))
    piece = data.draw(st.binary(max_size=view.nbytes - start))
    view.write(start, piece)
    before[start : start + len(piece)] = piece
    assert whole(array) == before


@given(arrays(broadcast=False), arrays(broadcast=False))
def test_an_array_travels_in_the_axis_order_of_another_descriptor(one, other):
    order = result_descriptor(describe(other), [2] * other.ndim)
    array = np.resize(one, [2] * other.ndim)
    view = WireView(array, v1.TensorDescriptor(sizes=array.shape, strides=order.strides))
    transposed = array.transpose(wire_axes(order))
    expected = np.ascontiguousarray(transposed).astype(array.dtype.newbyteorder("<")).tobytes()
    assert bytes(view.read(0, view.nbytes)) == expected


def test_a_part_of_a_strided_array_needs_memory_for_the_part_only():
    view = WireView(as_strided(np.zeros((1024, 64, 2), np.float32), (1024, 64), (512, 8)))
    assert view.nbytes == 262_144
    tracemalloc.start()
    view.read(1001, 5001)
    view.write(1001, bytes(4000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000


def test_signalling_nans_keep_their_bits():
    bits = np.array([[0x7F800001, 0xFFA00000], [0x7FC12345, 1]], np.uint32)
    array = bits.view(np.float32).T[::-1]
    view = WireView(array)
    assert bytes(view.read(0, 16)) == bits[:, ::-1].tobytes()
    out = np.zeros((2, 2), np.float32)[::-1]
    WireView(out).write(0, view.read(0, 16))
    assert out.view(np.uint32).tolist() == bits[:, ::-1].tolist()


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sources=st.lists(arrays(), min_size=1, max_size=6))
def test_arrays_of_any_layout_come_back_from_a_server_as_they_went(plain, sources):
    results = plain.evaluate_many((COPY, array, array.shape) for array in sources)
    for array, result in zip(sources, results, strict=True):
        same_bits(result, array.astype(array.dtype.newbyteorder("=")))


def test_arrays_are_read_while_masked_ones_are_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    assert to_array([[1.0, 2.0]]).shape == (1, 2)
