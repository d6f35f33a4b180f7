"""Programs: kernels by name, launches of them, tables and scratch memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from gradwire_server.backends.numpy_cpu import compute_dtype

Place = Literal["x", "y", "scratch", "table"]
Dim3 = tuple[int, int, int]
Format = tuple[np.dtype[Any], np.dtype[Any]]

STORAGE_TYPES = [np.dtype(one) for one in (np.float16, bfloat16, np.float32, np.float64)]

_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}

# march_channels: the most outputs that read one input.
OPEN = (2, 4)

# march_rows: numbers of a row per lane, and taps whose weights a lane keeps.
EACH = (1, 4)
TAPS = (4, 8)

# gather_taps: the most taps of a band.
FEW_TAPS = (1, 2)

# Steps with their own kernel: (step, halo) of bands that read step + 2 * halo inputs.
STEPS = ((2, 0), (2, 1), (2, 3), (4, 0), (4, 2))


class Buffer(NamedTuple):
    """Pointer argument: x, y, a table or a scratch buffer.

    x and y are tensors; tables and scratch buffers are numbered.
    """

    place: Place
    number: int = 0


X, Y = Buffer("x"), Buffer("y")
Argument = Buffer | np.generic


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch of a kernel.

    Launches of a program run in order, on one stream.

    kernel     its name expression, as kernel() returns it
    arguments  in the kernel's order; numbers have the width of its parameters
    """

    kernel: str
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]

    def resolved(self, addresses: Mapping[Buffer, int]) -> tuple[np.generic, ...]:
        """Return the arguments with device addresses in place of buffers."""
        return tuple(
            np.uint64(addresses[one]) if isinstance(one, Buffer) else one for one in self.arguments
        )


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """Launches that compute all of y from x.

    The arrays of a program must not be modified.

    tables   constant arrays on the device
    scratch  bytes of the buffers for results between launches, uninitialized
    """

    launches: tuple[Launch, ...]
    tables: Mapping[Buffer, npt.NDArray[Any]]
    scratch: Mapping[Buffer, int]


def lanes(dtype: np.dtype[Any]) -> int:
    """Return how many numbers a vector of 16 bytes holds."""
    return 16 // dtype.itemsize


def bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned integer type of the same size."""
    return np.dtype(f"u{dtype.itemsize}")


def kernel(name: str, types: Iterable[np.dtype[Any]], *parameters: int) -> str:
    """Return the name expression of a kernel with template arguments, for NVRTC."""
    arguments = (*(_TYPES[one.name] for one in types), *parameters)
    return f"{name}<{', '.join(map(str, arguments))}>"


def source(kernel: str) -> str:
    """Return the file of a kernel, which has its name."""
    return f"{kernel.partition('<')[0]}.cu"


def formats(storage: np.dtype[Any]) -> tuple[Format, ...]:
    """Return the source and result types of kernels for a storage type.

    The pairs are of the storage type and its compute type, which may be the same.
    """
    compute = compute_dtype(storage)
    return (storage, storage), (storage, compute), (compute, storage)


def marching(result: np.dtype[Any]) -> tuple[Format, ...]:
    """Return the formats, with this result, of march_steps, march_channels and gather_taps."""
    return (result, result), (compute_dtype(result), result)


def every_kernel() -> list[str]:
    """Return all kernels that programs may launch."""
    return sorted({kernel for storage in STORAGE_TYPES for kernel in _of_storage(storage)})


def _of_storage(storage: np.dtype[Any]) -> Iterator[str]:
    compute, whole = compute_dtype(storage), (lanes(storage), 1)
    for one in (*formats(storage), (compute, compute)):
        for vector in (lanes(one[0]), 1):
            yield kernel("axis_pass", one, vector)
        yield kernel("contiguous_pass", one)
    for one in formats(storage):
        for each, taps in product(EACH, (*TAPS, 0)):
            yield kernel("march_rows", one, each, taps)
    for one in marching(storage):
        for vector, most in product((lanes(one[0]), 1), OPEN):
            yield kernel("march_channels", one, vector, most)
        yield from (kernel("march_steps", one, *steps) for steps in STEPS)
        yield from (kernel("gather_taps", one, taps) for taps in FEW_TAPS)
    yield from (kernel("select_inputs", [bits(storage)], vector) for vector in whole)
    yield kernel("fill_bands", [bits(storage)])
