"""The whole CUDA backend has NumPy's bits in every row of the table, on a simulated device."""

from __future__ import annotations

from functools import cache

import pytest

from gradwire_server.backends.cuda.backend import Cuda
from support.kernels import cuda_device, cuda_table
from support.kernels.cuda_backends import needs_simulator
from support.kernels.cuda_device import SimulatedDevice
from support.kernels.kernel_table import Case

pytestmark = needs_simulator


@cache
def _backend() -> Cuda:
    """Return one for all rows, so that each finds what others left in memory."""
    return Cuda(SimulatedDevice(cuda_device.compiled()), memory_bytes=64 << 20, streams=2)


@pytest.mark.parametrize("case", cuda_table.cases(), ids=lambda case: case.name)
def test_every_row_has_the_bits_of_numpy(case: Case) -> None:
    for row in cuda_table.rows_of(case):
        row.check(_backend())
