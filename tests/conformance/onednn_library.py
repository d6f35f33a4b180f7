"""oneDNN's resampling: weights of the installed library, and whole gradients that are stored.

The wheel onednn-cpu-gomp brings the library alone; what is called here is of dnnl.h of release 3.2.
Weights are read off one-hot tensors along one axis.
"""

from __future__ import annotations

import ctypes
import itertools
from contextlib import ExitStack
from functools import cache, partial
from importlib.metadata import files
from typing import Any

import numpy as np

from conformance.rows import UP_TO_64, Section, Tally
from dialects import test_onednn as library
from gradwire import ops
from support.oracles.dialect_oracles import (
    DTYPES,
    AxisCase,
    Matrix,
    Tensor,
    axis_matrix,
    draw_sizes,
)

# Values of dnnl_types.h.
_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
_ALGORITHMS = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
_FORWARD_TRAINING = 64
_SRC, _DST, _DIFF_SRC, _DIFF_DST = 1, 17, 129, 145
_AVX512 = 0x20  # the bit that every dnnl_cpu_isa_t from avx512_core has


class _Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


@cache
def _library() -> ctypes.CDLL:
    (path,) = (each for each in files("onednn-cpu-gomp") or () if each.name == "libdnnl.so.3")
    loaded = ctypes.CDLL(str(path.locate()))
    loaded.omp_set_num_threads(1)  # tensors this small are many times slower with several
    return loaded


def has_avx512() -> bool:
    """Tell whether the library runs its code for AVX-512.

    Its other code has no bfloat16, and scatters the gradient of nearest by other instructions.
    """
    return bool(_library().dnnl_get_effective_cpu_isa() & _AVX512)


class _Calls(ExitStack):
    """Objects of the library, freed at the end of a `with`."""

    def create(self, kind: str, *arguments: Any, maker: str = "") -> ctypes.c_void_p:
        """Make a dnnl_KIND by dnnl_KIND_create, or by another function."""
        made = ctypes.c_void_p()
        self.call(maker or f"{kind}_create", ctypes.byref(made), *arguments)
        self.callback(getattr(_library(), f"dnnl_{kind}_destroy"), made)
        return made

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(_library(), f"dnnl_{name}")(*arguments)
        if status:
            raise RuntimeError(f"dnnl_{name} returned {status}")

    def description(self, tensor: Tensor) -> ctypes.c_void_p:
        """Describe a tensor of order N, C, X by its strides in elements."""
        rank, maker = tensor.ndim, "memory_desc_create_with_strides"
        strides = (stride // tensor.itemsize for stride in tensor.strides)
        sizes, steps = ((ctypes.c_int64 * rank)(*each) for each in (tensor.shape, strides))
        return self.create(
            "memory_desc", rank, sizes, _TYPES[tensor.dtype.name], steps, maker=maker
        )


def resample(mode: str, src: Tensor, dst: Tensor, *, backward: bool) -> None:
    """Write dst from src or, backward, src from dst, which then are diff_src and diff_dst.

    src, dst  float32 or bfloat16, axes in the order N, C, X, of any dense strides
    """
    with _Calls() as calls:
        engine = calls.create("engine", 1, ctypes.c_size_t(0))  # a CPU
        described = [calls.description(each) for each in (src, dst)]
        algorithm, maker = _ALGORITHMS[mode], "resampling_{}_primitive_desc_create"
        given: Any = (engine, _FORWARD_TRAINING, algorithm, None, *described, None)
        chosen = calls.create("primitive_desc", *given, maker=maker.format("forward"))
        if backward:
            given = (engine, algorithm, None, *described, chosen, None)
            chosen = calls.create("primitive_desc", *given, maker=maker.format("backward"))
        primitive, stream = calls.create("primitive", chosen), calls.create("stream", engine, 1)
        numbers = (_DIFF_SRC, _DIFF_DST) if backward else (_SRC, _DST)
        arguments = (_Argument * 2)()
        for each, number, description, tensor in zip(
            arguments, numbers, described, (src, dst), strict=True
        ):
            data = ctypes.c_void_p(tensor.ctypes.data)
            each.arg, each.memory = number, calls.create("memory", description, engine, data).value
        calls.call("primitive_execute", primitive, stream, 2, arguments)
        calls.call("stream_wait", stream)


def _table(case: AxisCase, dtype: str, *, backward: bool) -> Matrix:
    channels = case.outputs if backward else case.inputs
    order = (0, 1, 2) if case.attributes["data_format"] == "NCX" else (0, 2, 1)
    src, dst = (
        np.zeros((1, channels, x), DTYPES[dtype]).transpose(order).copy().transpose(order)
        for x in (case.inputs, case.outputs)
    )
    (dst if backward else src)[0] = np.eye(channels)
    resample(case.attributes["mode"], src, dst, backward=backward)
    return np.array(src[0] if backward else dst[0].T, np.float64)


def _deviates(case: AxisCase, ours: Matrix, theirs: Matrix) -> bool:
    """Tell whether the gradient only has ties one element low, as is listed."""
    nearest = case.attributes["mode"] == "nearest" and case.attributes["data_format"] == "NXC"
    moved = np.flatnonzero((ours != theirs).any(axis=1))
    low = np.array_equal(theirs[moved, :-1], ours[moved, 1:])
    x = ((2 * moved + 1) * case.inputs) / (2 * case.outputs)
    return nearest and low and bool(np.all(x == np.floor(x)))


def _add(tally: Tally, case: AxisCase, words: str = "") -> None:
    """Compare the tables of a case, and those of its gradient, in each type."""
    mode, data_format = case.attributes["mode"], case.attributes["data_format"]
    operator = ops.Interpolate(sizes=(case.outputs,), mode=mode, data_format="NCX")
    ours = axis_matrix(operator, case, rank=3, axis=2, dtype=np.float32)
    for dtype in ("float32", "bfloat16") if has_avx512() else ("float32",):
        for backward, name in enumerate(("interpolate", "interpolate_backward")):
            theirs = _table(case, dtype, backward=bool(backward))
            tally.add(
                ("oneDNN: weights", name, f"{mode}, {data_format}{words}", dtype),
                ours.astype(DTYPES[dtype]),
                theirs,
                deviates=partial(_deviates, case, ours, theirs) if backward else lambda: False,
            )


def _compare(tally: Tally) -> None:
    generator = np.random.default_rng(9)
    kinds: list[Any] = [
        {"mode": mode, "data_format": data_format}
        for mode, data_format in itertools.product(("nearest", "linear"), ("NCX", "NXC"))
    ]
    for i in range(1200):
        _add(tally, AxisCase(kinds[i % 4], *draw_sizes(generator, largest=300)))
    for attributes in kinds[:2]:
        for lengths in tally.lengths():
            _add(tally, AxisCase(attributes, *lengths), f", {UP_TO_64}")
    for case, diff_dst, expected in library.RESULTS:
        dtype = np.dtype(library.DTYPES[case.dtype])
        key = ("oneDNN: whole gradients, stored", "interpolate_backward", case.mode, dtype.name)
        result = case.evaluate(diff_dst.astype(dtype))
        tally.add(key, result, expected, allowed=library.allowed(case, diff_dst, expected))


SECTION = Section.of("oneDNN", _compare)
