"""The backends whose laws are tested."""

from __future__ import annotations

import pytest

import cuda_device
from cuda_device import SimulatedCuda
from cuda_here import needs_simulator
from gradwire_server import backends
from gradwire_server.backends import Backend
from numba_here import needs_numba


@pytest.fixture(
    scope="session",
    params=[
        "numpy_cpu",
        pytest.param("numba_cpu", marks=needs_numba),
        pytest.param("cuda_simulated", marks=needs_simulator),
    ],
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each backend in turn, on one thread, ready to compute."""
    if request.param == SimulatedCuda.name:
        return SimulatedCuda(cuda_device.compiled())
    chosen, _ = backends.choose(request.param)
    chosen.warm_up()
    return chosen
