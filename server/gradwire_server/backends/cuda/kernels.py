"""Names and variants of all kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np

from gradwire_server.backends.cuda.programs import Kernel
from gradwire_server.backends.numpy_cpu import compute_dtype

Format = tuple[np.dtype[Any], np.dtype[Any]]

_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}

# Of march_channels: the most outputs that read one input.
OPEN = (2, 4)

# Of march_rows: numbers a lane has of a row, and taps whose weights it keeps.
EACH = (1, 4)
TAPS = (4, 8)

# Of gather_taps: the most taps of a band.
FEW_TAPS = (1, 2)

# Steps with a kernel of their own: (step, halo) of bands that read step + 2 * halo inputs.
STEPS = ((2, 0), (2, 1), (2, 3), (4, 0), (4, 2))


def lanes(dtype: np.dtype[Any]) -> int:
    """Return the numbers of a vector, which has 16 bytes."""
    return 16 // dtype.itemsize


def bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of unsigned integers of the same size."""
    return np.dtype(f"u{dtype.itemsize}")


def kernel(name: str, types: Iterable[np.dtype[Any]], *parameters: int) -> Kernel:
    """Return the kernel of a file of this name, with these template arguments."""
    arguments = (*(_TYPES[one.name] for one in types), *parameters)
    return Kernel(f"{name}.cu", f"{name}<{', '.join(map(str, arguments))}>")


def row_outputs(each: int, taps: int) -> int:
    """Return the most outputs of a row of a lane of march_rows."""
    return each // 2 if each > 1 and taps > TAPS[0] else each


def gather_vector(result: np.dtype[Any], taps: int) -> int:
    """Return the neighbors of a thread of gather_taps."""
    return min(4, lanes(result)) if taps > 1 else lanes(result)


def formats(storage: np.dtype[Any]) -> tuple[Format, ...]:
    """Return what kernels of a storage type read and write: it, or its compute type."""
    compute = compute_dtype(storage)
    if storage == compute:
        return ((storage, storage),)
    return (storage, storage), (storage, compute), (compute, storage)


def marching(result: np.dtype[Any]) -> tuple[Format, ...]:
    """Return the formats, with this result, of march_steps, march_channels and gather_taps."""
    return tuple(dict.fromkeys([(result, result), (compute_dtype(result), result)]))


def every(storage: np.dtype[Any]) -> Iterator[Kernel]:
    """Yield all kernels that programs for a storage type may launch."""
    compute, whole = compute_dtype(storage), (lanes(storage), 1)
    for one in dict.fromkeys([*formats(storage), (compute, compute)]):
        for vector in (lanes(one[0]), 1):
            yield kernel("axis_pass", one, vector)
        yield kernel("contiguous_pass", one)
        yield kernel("convert", one)
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
