"""Names and variants of all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from gradwire_server.backends.cuda.programs import Kernel
from gradwire_server.backends.numpy_cpu import compute_dtype

Format = tuple[np.dtype[Any], np.dtype[Any]]

# Bytes that a thread reads or writes at once.
VECTOR_BYTES = 16

_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}
_BITS = {2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

# Ways of the marching kernels: outputs that read one input, at most.
OPEN = (2, 4)

# Of march_rows: numbers a lane has of a row, and taps whose weights it keeps.
EACH = (1, 4)
TAPS = (4, 8)

# Of gather_taps: the most taps of a band.
FEW_TAPS = (1, 2)

# Steps with a kernel of their own: (step, halo) of bands that read step + 2 * halo inputs.
STEPS = ((2, 0), (2, 1), (2, 3), (4, 0), (4, 2))


def lanes(dtype: np.dtype[Any]) -> int:
    """Numbers in a vector."""
    return VECTOR_BYTES // dtype.itemsize


def axis_pass(formats: Format, vector: int) -> Kernel:
    """One pass over [outer, axis, inner], with so many neighbors of the inner axis a thread."""
    return _kernel("axis_pass", *map(_type, formats), vector)


def contiguous_pass(formats: Format) -> Kernel:
    """One pass over [outer, axis]."""
    return _kernel("contiguous_pass", *map(_type, formats))


def march_rows(formats: Format, each: int, taps: int) -> Kernel:
    """Two passes over [outer, rows, columns, few channels]."""
    return _kernel("march_rows", *map(_type, formats), each, taps)


def row_outputs(each: int, taps: int) -> int:
    """Return how many outputs of a row a lane of march_rows makes, at most."""
    return each // 2 if each > 1 and taps > TAPS[0] else each


def march_channels(formats: Format, vector: int, open_outputs: int) -> Kernel:
    """Two passes over [outer, rows, columns, channels], so many channels a thread."""
    return _kernel("march_channels", *map(_type, formats), vector, open_outputs)


def march_steps(formats: Format, step: int, halo: int) -> Kernel:
    """Two passes over [outer, rows, columns], both with bands that advance by equal steps."""
    return _kernel("march_steps", *map(_type, formats), step, halo)


def gather_taps(formats: Format, taps: int) -> Kernel:
    """Two passes over [outer, rows, columns, channels], with bands of at most so many taps."""
    return _kernel("gather_taps", *map(_type, formats), taps)


def gather_vector(result: np.dtype[Any], taps: int) -> int:
    """Return how many neighbors a thread of gather_taps makes."""
    return min(4, lanes(result)) if taps > 1 else lanes(result)


def select_inputs(itemsize: int, vector: int) -> Kernel:
    """Up to three passes whose bands have one tap of weight 1, or none."""
    return _kernel("select_inputs", _BITS[itemsize], vector)


def convert(formats: Format) -> Kernel:
    """Numbers of one type as numbers of another."""
    return _kernel("convert", *map(_type, formats))


def fill_bands(dtype: np.dtype[Any]) -> Kernel:
    """One value for all results of some outputs of an axis."""
    return _kernel("fill_bands", _BITS[dtype.itemsize])


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
    compute = compute_dtype(storage)
    for one in dict.fromkeys([*formats(storage), (compute, compute)]):
        for vector in (lanes(one[0]), 1):
            yield axis_pass(one, vector)
        yield contiguous_pass(one)
        yield convert(one)
    for one in formats(storage):
        for each, taps in product(EACH, (*TAPS, 0)):
            yield march_rows(one, each, taps)
    for one in marching(storage):
        for vector in (lanes(one[0]), 1):
            for most in OPEN:
                yield march_channels(one, vector, most)
        yield from (march_steps(one, *steps) for steps in STEPS)
        yield from (gather_taps(one, taps) for taps in FEW_TAPS)
    for vector in (lanes(storage), 1):
        yield select_inputs(storage.itemsize, vector)
    yield fill_bands(storage)


def _kernel(name: str, *arguments: object) -> Kernel:
    return Kernel(f"{name}.cu", f"{name}<{', '.join(map(str, arguments))}>")


def _type(dtype: np.dtype[Any]) -> str:
    return _TYPES[dtype.name]
