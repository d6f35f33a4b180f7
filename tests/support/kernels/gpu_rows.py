"""A few small rows of the table on a device, for a tool that watches this process.

    PYTHONPATH=server:client:tests python tests/support/kernels/gpu_rows.py [sim]

Every kernel is launched that any row launches. Prints one hash of all results, which is
NumPy's where the bits are.
"""

from __future__ import annotations

import sys

from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import Device
from gradwire_server.backends.cuda.programs import Kernel
from support.kernels import cuda_device, cuda_table
from support.kernels.cuda_device import SimulatedDevice
from support.kernels.cuda_table import Row


def few_rows() -> list[Row]:
    """Return rows that launch every kernel that any row does, on as few numbers as that takes."""
    found, seen = list[Row](), set[Kernel]()
    for row in sorted(cuda_table.rows(), key=lambda row: row.size):
        if not row.kernels <= seen:
            seen |= row.kernels
            found.append(row)
    return found


if __name__ == "__main__":
    try:
        device: Device = (
            SimulatedDevice(cuda_device.compiled()) if sys.argv[1:] else cupy_device.CupyDevice()
        )
    except ImportError as error:
        sys.exit(f"cuda cannot run here: {error}")
    backend = Cuda(device, memory_bytes=256 << 20, cpu_work=0)
    sys.stdout.write(cuda_table.digest(backend, few_rows()) + "\n")
