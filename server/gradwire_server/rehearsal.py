"""A few tiny requests before the first caller's, for what Python and a backend do only once."""

from __future__ import annotations

import numpy as np

from gradwire import ops, tensors, v1
from gradwire_server import wire
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.engine import Limits, PlanCache, Preparer

_INPUT, _OUTPUT = (1, 2, 6, 34), (1, 2, 3, 17)
_OPERATORS = (
    ops.InterpolateBackward(mode="linear", data_format="NCX"),
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
)


def rehearse(backend: Backend) -> None:
    """Evaluate every data type, all the way from a message, and compare with NumPy.

    Raises RuntimeError where the backend's bits are others.
    """
    preparer = Preparer(Limits(), PlanCache(max_entries=1 << 16))
    for data_type, dtype in tensors.DTYPES.items():
        data = np.linspace(-1, 1, int(np.prod(_INPUT))).astype(dtype).view(np.uint8)
        for operator in _OPERATORS:
            header = v1.Open(
                operator=ops.to_message(operator),
                input=v1.TensorDescriptor(data_type=data_type, sizes=_INPUT),
                output=v1.TensorDescriptor(data_type=data_type, sizes=_OUTPUT),
            )
            evaluation = preparer.prepare(wire.read_request(header))
            result, specified = (evaluation.run_whole(data, one) for one in (backend, NumpyCpu()))
            if result.tobytes() != specified.tobytes():
                raise RuntimeError(
                    f"{backend.name} computes other bits than {NumpyCpu.name} for {operator.name} "
                    f"on {dtype}; choose --backend {NumpyCpu.name} and please report this"
                )
