"""The backends whose laws are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend
from gradwire_server.backends.cuda.backend import Cuda
from support.kernels import cuda_device
from support.kernels.cuda_backends import needs_simulator
from support.kernels.cuda_device import SimulatedDevice
from support.kernels.numba_calls import needs_numba


@pytest.fixture(
    scope="session",
    params=[
        "numpy_cpu",
        pytest.param("numba_cpu", marks=needs_numba),
        pytest.param("cuda", marks=needs_simulator),
    ],
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param != "cuda":
        chosen, _ = backends.choose(request.param)
        chosen.warm_up()
        yield chosen
        return
    device = SimulatedDevice(cuda_device.compiled())
    yield Cuda(device, memory_bytes=1 << 30, buffer_bytes=1 << 16)
