"""Launches of the small kernels in samples.cu, by the names of what they show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from cudasim.module import Array, Buffer, Module, Scalar, compiled

FOLDER = Path(__file__).parent

NAMES = [
    "reverse<true>",
    "reverse<false>",
    "neighbors",
    "copy",
    "copy_vectors",
    "writes_input",
    "leaves_before_barrier",
    "two_barriers",
    "shuffles_outside_mask",
    "widen<__half>",
    "widen<__nv_bfloat16>",
    "narrow<__half>",
    "narrow<__nv_bfloat16>",
    "multiply_add",
]


@cache
def samples() -> Module:
    return compiled(FOLDER, [("samples.cu", name) for name in NAMES])


def show(what: str, order: int = 0, *, module: Module | None = None) -> Array:
    """Launch a kernel in the way that shows something; return what it wrote.

    module  where the kernels come from; compiled from their source unless it is given
    """
    module = module or samples()
    ramp = np.arange(64, dtype=np.float32)
    x, y = module.holding(ramp, order=order), module.buffer(ramp.nbytes, order=order)
    count = np.int32(64)
    launches: dict[str, tuple[str, int, list[Buffer | Scalar]]] = {
        "barrier": ("reverse<true>", 64, [x, y, count]),
        "missing barrier": ("reverse<false>", 64, [x, y, count]),
        "shuffles": ("neighbors", 64, [x, y]),
        "copy": ("copy", 64, [x, y, np.int32(0)]),
        "reads beyond": ("copy", 64, [x, y, np.int32(1)]),
        "reads before": ("copy", 64, [x, y, np.int32(-1)]),
        "misaligned": ("copy_vectors", 15, [x, y, np.int32(2)]),
        "writes input": ("writes_input", 64, [x, y]),
        "leaves": ("leaves_before_barrier", 64, [y, np.int32(63)]),
        "two barriers": ("two_barriers", 64, [y]),
        "mask": ("shuffles_outside_mask", 64, [y]),
        "large block": ("copy", 1025, [x, y, np.int32(0)]),
    }
    name, threads, arguments = launches[what]
    module.launch(name, (1,), (threads,), arguments, order=order)
    return y.view(np.float32, 64).copy()


def mapped(name: str, x: list[Array], result: Array) -> Array:
    module = samples()
    given = [module.holding(one) for one in x]
    y = module.buffer(result.nbytes)
    blocks, rest = divmod(result.size, 64)
    assert rest == 0
    module.launch(name, (blocks,), (64,), [*given, y])
    return y.view(result.dtype, result.size).copy()
