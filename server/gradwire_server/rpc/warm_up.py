"""Comparison of a backend's bits with NumPy's before the server serves."""

from __future__ import annotations

import math

import numpy as np

from gradwire import ops, tensors, v1
from gradwire_server.backends import Backend, LeavesToCpu, NumpyCpu
from gradwire_server.engine import Limits, Preparer, at_once
from gradwire_server.rpc import codec

_SIZES, _HALVED = (1, 2, 6, 34), (1, 2, 3, 17)
_OPERATORS = (
    ops.InterpolateBackward(mode="linear", data_format="NCX"),
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
)


def check_backend(backend: Backend) -> None:
    """Evaluate every data type, and compare with NumPy.

    Raises RuntimeError if the backend's bits differ.
    """
    preparer = Preparer(Limits())
    # Such a backend leaves tensors this small to the CPU, so its device is tested separately.
    all_of_it = [backend, backend.on_device()] if isinstance(backend, LeavesToCpu) else [backend]
    for data_type, dtype in tensors.DTYPES.items():
        data = np.linspace(-1, 1, math.prod(_SIZES)).astype(dtype).view(np.uint8)
        for operator in _OPERATORS:
            header = v1.Open(
                operator=ops.to_message(operator),
                input=v1.TensorDescriptor(data_type=data_type, sizes=_SIZES),
                output=v1.TensorDescriptor(data_type=data_type, sizes=_HALVED),
            )
            prepared = preparer.prepare(codec.read_request(header))
            specified = at_once(prepared, data.data, NumpyCpu()).tobytes()
            if any(at_once(prepared, data.data, one).tobytes() != specified for one in all_of_it):
                raise RuntimeError(
                    f"{backend.name} computes other bits than {NumpyCpu.name} for {operator.name} "
                    f"on {dtype}; choose --backend {NumpyCpu.name} and please report this"
                )
