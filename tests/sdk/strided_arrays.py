"""Arrays as users have them: of any type, byte order, axis order, padding, direction, alignment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import v1
from gradwire.tensors import DTYPES, strides_of

Array = NDArray[Any]


@st.composite
def arrays(draw: st.DrawFn, *, broadcast: bool = True) -> Array:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    if dtype.kind == "f":
        dtype = dtype.newbyteorder("<" if draw(st.booleans()) else ">")
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
    """Follow the definition of the wire order, element by element, over packed addresses."""
    by_address: dict[int, bytes] = {}
    little = array.astype(array.dtype.newbyteorder("<"))
    strides = strides_of(descriptor)
    for index in np.ndindex(*array.shape):
        address = sum(i * s for i, s in zip(index, strides, strict=True) if s)
        by_address.setdefault(address, little[index].tobytes())
    return b"".join(by_address[address] for address in sorted(by_address))
