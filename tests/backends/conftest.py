"""The backends whose laws are tested."""

from __future__ import annotations

import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend
from gradwire_server.backends.cuda.backend import Cuda
from support.kernels.cuda_backends import needs_simulator, simulated
from support.kernels.numba_calls import needs_numba


@pytest.fixture(
    scope="session",
    params=[
        "numpy_cpu",
        pytest.param("numba_cpu", marks=needs_numba),
        pytest.param("cuda", marks=needs_simulator),
    ],
)
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "cuda":
        return Cuda(simulated(), memory_bytes=1 << 30, buffer_bytes=1 << 16)
    chosen, _ = backends.choose(request.param)
    chosen.warm_up()
    return chosen
