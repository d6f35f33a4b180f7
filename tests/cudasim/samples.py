"""Launches of the small kernels in samples.cu, by the names of what they show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from cudasim.module import Array, Module, compiled

FOLDER = Path(__file__).parent

# For each finding the kernel that shows it, its threads, and its arguments after x and y.
_SHOWN = {
    "barrier": ("reverse<true>", 64, [64]),
    "missing barrier": ("reverse<false>", 64, [64]),
    "shuffles": ("neighbors", 64, []),
    "copy": ("copy", 64, [0]),
    "reads beyond": ("copy", 64, [1]),
    "reads before": ("copy", 64, [-1]),
    "misaligned": ("copy_vectors", 15, [2]),
    "writes input": ("writes_input", 64, []),
    "leaves": ("leaves_before_barrier", 64, [63]),
    "two barriers": ("two_barriers", 64, []),
    "mask": ("shuffles_outside_mask", 64, []),
    "large block": ("copy", 1025, [0]),
}
_WITHOUT_INPUT = {"leaves", "two barriers", "mask"}

_MAPPED = [f"{way}<{kind}>" for way in ("widen", "narrow") for kind in ("__half", "__nv_bfloat16")]
NAMES = sorted({name for name, _, _ in _SHOWN.values()} | set(_MAPPED))


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
    name, threads, numbers = _SHOWN[what]
    given = [y] if what in _WITHOUT_INPUT else [x, y]
    module.launch(name, (1,), (threads,), [*given, *map(np.int32, numbers)], order=order)
    return y.view(np.float32, 64).copy()


def mapped(name: str, x: Array, result: Array) -> Array:
    module = samples()
    y = module.buffer(result.nbytes)
    blocks, rest = divmod(result.size, 64)
    assert rest == 0
    module.launch(name, (blocks,), (64,), [module.holding(x), y])
    return y.view(result.dtype, result.size).copy()
