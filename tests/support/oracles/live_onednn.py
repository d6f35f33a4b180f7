"""oneDNN's resampling along one axis, read off by one-hot tensors through its C functions.

The wheel onednn-cpu-gomp brings the library alone; what is called here is of dnnl.h of release 3.2.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.metadata import files
from typing import Any, Self

import ml_dtypes
import numpy as np

from support.oracles import axis_tables
from support.oracles.axis_tables import AxisCase
from support.oracles.dialect_oracles import Matrix, Tensor

RELEASE = "onednn-cpu-gomp"
MODES = ("nearest", "linear")
FORMATS = ("NCX", "NXC")
DTYPES: dict[str, Any] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

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
    (path,) = (each for each in files(RELEASE) or () if each.name == "libdnnl.so.3")
    library = ctypes.CDLL(str(path.locate()))
    library.omp_set_num_threads(1)  # tensors this small are many times slower with several
    return library


def has_avx512() -> bool:
    """Tell whether the library runs its code for AVX-512.

    Its other code has no bfloat16, and scatters the gradient of nearest by other instructions.
    """
    return bool(_library().dnnl_get_effective_cpu_isa() & _AVX512)


class _Calls:
    """Objects of the library, freed at the end of a `with`."""

    def __init__(self) -> None:
        self._library = _library()
        self._opened = ExitStack()
        self.engine = self.create("engine", 1, ctypes.c_size_t(0))  # a CPU

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def create(self, kind: str, *arguments: Any, maker: str = "") -> ctypes.c_void_p:
        """Make a dnnl_KIND by dnnl_KIND_create, or by another function."""
        made = ctypes.c_void_p()
        self.call(maker or f"{kind}_create", ctypes.byref(made), *arguments)
        self._opened.callback(getattr(self._library, f"dnnl_{kind}_destroy"), made)
        return made

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"dnnl_{name}")(*arguments)
        if status:
            raise RuntimeError(f"dnnl_{name} returned {status}")

    def description(self, tensor: Tensor) -> ctypes.c_void_p:
        """Describe a tensor of order N, C, X by its strides in elements."""
        rank = tensor.ndim
        strides = [stride // tensor.itemsize for stride in tensor.strides]
        return self.create(
            "memory_desc",
            rank,
            (ctypes.c_int64 * rank)(*tensor.shape),
            _TYPES[tensor.dtype.name],
            (ctypes.c_int64 * rank)(*strides),
            maker="memory_desc_create_with_strides",
        )

    def run(self, chosen: ctypes.c_void_p, arguments: Sequence[tuple[int, Any, Tensor]]) -> None:
        primitive, stream = self.create("primitive", chosen), self.create("stream", self.engine, 1)
        given = (_Argument * len(arguments))()
        for each, (number, described, tensor) in zip(given, arguments, strict=True):
            memory = self.create(
                "memory", described, self.engine, ctypes.c_void_p(tensor.ctypes.data)
            )
            each.arg, each.memory = number, memory.value
        self.call("primitive_execute", primitive, stream, len(arguments), given)
        self.call("stream_wait", stream)


def resample(mode: str, src: Tensor, dst: Tensor, *, backward: bool) -> None:
    """Write dst from src or, backward, src from dst, which then are diff_src and diff_dst.

    src, dst  float32 or bfloat16, axes in the order N, C, X, of any dense strides
    """
    with _Calls() as calls:
        described = calls.description(src), calls.description(dst)
        algorithm = _ALGORITHMS[mode]
        made = "resampling_{}_primitive_desc_create"
        chosen = calls.create(
            "primitive_desc",
            *(calls.engine, _FORWARD_TRAINING, algorithm, None, *described, None),
            maker=made.format("forward"),
        )
        numbers = _SRC, _DST
        if backward:
            numbers = _DIFF_SRC, _DIFF_DST
            chosen = calls.create(
                "primitive_desc",
                *(calls.engine, algorithm, None, *described, chosen, None),
                maker=made.format("backward"),
            )
        calls.run(chosen, list(zip(numbers, described, (src, dst), strict=True)))


def _empty(channels: int, length: int, case: AxisCase, dtype: str) -> Tensor:
    if case.attributes["data_format"] == "NCX":
        return np.zeros((1, channels, length), DTYPES[dtype])
    return np.zeros((1, length, channels), DTYPES[dtype]).transpose(0, 2, 1)


def forward_table(case: AxisCase, dtype: str = "float32") -> Matrix:
    src = _empty(case.inputs, case.inputs, case, dtype)
    dst = _empty(case.inputs, case.outputs, case, dtype)
    src[0] = np.eye(case.inputs)
    resample(case.attributes["mode"], src, dst, backward=False)
    return np.array(dst[0].T, np.float64)


def gradient_table(case: AxisCase, dtype: str = "float32") -> Matrix:
    diff_src = _empty(case.outputs, case.inputs, case, dtype)
    diff_dst = _empty(case.outputs, case.outputs, case, dtype)
    diff_dst[0] = np.eye(case.outputs)
    resample(case.attributes["mode"], diff_src, diff_dst, backward=True)
    return np.array(diff_src[0], np.float64)


def cases(count: int) -> list[AxisCase]:
    """Draw cases of every mode and layout, with lengths up to 300."""
    generator = np.random.default_rng(9)
    given = [{"mode": m, "data_format": f} for m, f in itertools.product(MODES, FORMATS)]
    return [
        AxisCase({**given[i % len(given)]}, *axis_tables.sizes(generator, largest=300))
        for i in range(count)
    ]


Table = Callable[[AxisCase, str], Matrix]
TABLES: dict[str, Table] = {"interpolate": forward_table, "interpolate_backward": gradient_table}
