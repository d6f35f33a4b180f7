"""Comparison of a backend's bits with NumPy's before the server serves."""

from __future__ import annotations

import math
import time

import numpy as np

from gradwire import ops, tensors, v1
from gradwire_server.backends import Backend, LeavesToCpu, NumpyCpu
from gradwire_server.engine import Limits, Preparer, TableCache, at_once
from gradwire_server.rpc import codec

_FLOAT32 = v1.DataType.DATA_TYPE_FLOAT32
_SMALL = (1, 2, 6, 34)
_LINEAR = ops.InterpolateBackward(mode="linear", data_format="NCX")
_OPERATORS = (
    _LINEAR,
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
)

_MEASURED = (1, 3, 64, 64)
_RUNS = 5


def check_backend(backend: Backend) -> float:
    """Evaluate every data type, compare with NumPy, and return the speed.

    The speed is in multiplications per second.

    Raises RuntimeError if the backend's bits differ.
    """
    preparer = Preparer(Limits(), TableCache())
    # Such a backend leaves tensors this small to the CPU, so its device is tested separately.
    all_of_it = [backend, backend.on_device()] if isinstance(backend, LeavesToCpu) else [backend]
    for data_type, dtype in tensors.DTYPES.items():
        data = np.linspace(-1, 1, math.prod(_SMALL)).astype(dtype).view(np.uint8)
        for operator in _OPERATORS:
            header = _header(operator, data_type, _SMALL)
            prepared = preparer.prepare(codec.read_request(header))
            specified = at_once(prepared, data.data, NumpyCpu()).tobytes()
            if any(at_once(prepared, data.data, one).tobytes() != specified for one in all_of_it):
                raise RuntimeError(
                    f"{backend.name} computes other bits than {NumpyCpu.name} for {operator.name} "
                    f"on {dtype}; choose --backend {NumpyCpu.name} and please report this"
                )
    return _rate(preparer, backend)


def _rate(preparer: Preparer, backend: Backend) -> float:
    """Measure a backend on a tensor whose evaluation takes some ten microseconds."""
    prepared = preparer.prepare(codec.read_request(_header(_LINEAR, _FLOAT32, _MEASURED)))
    data = np.ones(prepared.input.wire_bytes, np.uint8)
    seconds = math.inf
    for _ in range(_RUNS):
        began = time.perf_counter()
        at_once(prepared, data.data, backend)
        seconds = min(seconds, time.perf_counter() - began)
    return prepared.inline_work / seconds


def _header(
    operator: ops.Operator, data_type: v1.DataType.ValueType, sizes: tuple[int, ...]
) -> v1.Open:
    """Return a header whose output halves the last two axes."""
    halved = (*sizes[:2], sizes[2] // 2, sizes[3] // 2)
    return v1.Open(
        operator=ops.to_message(operator),
        input=v1.TensorDescriptor(data_type=data_type, sizes=sizes),
        output=v1.TensorDescriptor(data_type=data_type, sizes=halved),
    )
