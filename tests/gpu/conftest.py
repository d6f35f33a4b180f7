"""The CUDA backend on this machine's GPU; tests are skipped, with the reason, where it has none."""

from __future__ import annotations

import pytest

from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    """Return the backend, ready to compute."""
    try:
        backend = Cuda(cupy_device.CupyDevice(), memory_bytes=1 << 30, cpu_work=0)
    except ImportError as error:
        pytest.skip(f"cuda cannot run here: {error}")
    backend.warm_up()
    return backend
