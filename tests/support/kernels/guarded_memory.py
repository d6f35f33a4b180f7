"""Arrays that begin or end where no one may read or write: who does ends with SIGSEGV."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server import backends
from gradwire_server.backends import Backend, NumpyCpu
from support.kernels import kernel_maps as maps
from support.kernels.kernel_cases import numbers, some_formats
from support.kernels.kernel_table import cases
from support.kernels.numba_here import streaming
from support.oracles import oracles

_PROT_NONE = 0


class GuardedMemory:
    """A piece of memory between two pages that may not be touched.

    size  bytes, at least
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._size = -(-size // page) * page
        self._memory = mmap.mmap(-1, self._size + 2 * page)
        self._first = page
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for place in (self._start, self._start + page + self._size):
            _forbid(place, page)

    def shut(self) -> None:
        _forbid(self._start, self._first + self._size)

    def array(
        self, shape: Sequence[int], dtype: npt.DTypeLike, *, at_end: bool
    ) -> npt.NDArray[Any]:
        """Return an array that ends where the memory ends, or begins where it begins."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        assert size <= self._size
        offset = self._first + (self._size - size if at_end else 0)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def holding(self, values: npt.NDArray[Any], *, at_end: bool) -> npt.NDArray[Any]:
        array = self.array(values.shape, values.dtype, at_end=at_end)
        array[...] = values
        return array

    def touch(self, *, beyond: int) -> bytes:
        end = self._start + self._first + self._size
        return ctypes.string_at(end + beyond, 1)


def _forbid(place: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.mprotect(place, size, _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")


class GuardedScratch:
    """Stands for the buffers of a thread: exactly as many bytes as a job has asked for."""

    def __init__(self) -> None:
        self.at_end = False
        self._memory = GuardedMemory(1 << 24)

    def address(self, size: int) -> int:
        """Return where they begin, at a multiple of a vector's bytes."""
        array = self._memory.array([size], np.uint8, at_end=self.at_end)
        return array.ctypes.data // 64 * 64


def check_guarded_streams() -> None:
    """Assert the same of results that are written past the caches."""
    with streaming(1) as backend:
        check_guarded_cases(backend)


def check_guarded_cases(given: Backend | None = None) -> None:
    """Assert NumPy's bits of all listed cases, in some formats, with guarded buffers."""
    backend = given or backends.choose("numba_cpu")[0]
    scratch = vars(backend)["_scratch"] = GuardedScratch()
    largest = max(
        max(math.prod(case.plan.input_shape), math.prod(case.plan.output_shape)) for case in cases()
    )
    source, target = GuardedMemory(8 * largest), GuardedMemory(8 * largest)
    for case, (arriving, leaving) in ((one, some) for one in cases() for some in some_formats(one)):
        ordinary = numbers(case, arriving, special=False)
        expected = np.empty(case.plan.output_shape, leaving)
        NumpyCpu().apply(case.plan, ordinary, expected)
        for at_end in (False, True):
            x = source.holding(ordinary, at_end=at_end)
            y = target.array(expected.shape, leaving, at_end=at_end)
            scratch.at_end = at_end
            backend.apply(case.plan, x, y)
            oracles.same_bits(y, expected)


def check_guarded_sums() -> None:
    """Assert NumPy's bits of sums that are continued, of rows of all lengths."""
    backend, _ = backends.choose("numba_cpu")
    source, target = GuardedMemory(1 << 20), GuardedMemory(1 << 20)
    bands = maps.cubic(29, 97).adjoint()
    for inner, dtype in product([1, 5, 8, 16, 17, 40, 64, 67, 130], [np.float32, np.float64]):
        whole = np.random.default_rng(inner).standard_normal((1, 97, inner)).astype(dtype)
        expected = np.empty((1, bands.outputs, inner), dtype)
        NumpyCpu().accumulate(bands, whole, expected, axis=1, carried=0)
        for at_end in (False, True):
            y = target.array(expected.shape, dtype, at_end=at_end)
            carried = 0
            for low, high in pairwise([0, 40, 41, 97]):
                x = source.holding(whole[:, low:high], at_end=at_end)
                piece = bands.window(0, bands.outputs, low, high)
                backend.accumulate(piece, x, y, axis=1, carried=carried)
                carried = int((bands.start < high).sum())
            oracles.same_bits(y, expected)
