"""A simulated device for the process of a device, which tests tell to fail through a folder.

python tests/simulated_device.py FLAGS    is gradwire-server, but for what finds its devices
"""

from __future__ import annotations

import os
from pathlib import Path

import cuda_device
from cuda_device import SimulatedDevice, SimulatedMemory, SimulatedStream
from gradwire_server import __main__ as server
from gradwire_server import devices
from gradwire_server.backends.cupy_cuda.device import DeviceLostError

# Folder where tests put files: broken-NUMBER, full-NUMBER, missing-NUMBER; count, a number in text.
FOLDER = "SIMULATED_DEVICES"
NONE = "the NVIDIA driver sees no device"
ILLEGAL = "an illegal memory access was encountered"


def find(number: int, *, cache_dir: str) -> tuple[SimulatedDevice, int]:
    """Return a simulated device, as `device.Find` has it."""
    folder = Path(os.environ[FOLDER])
    if (folder / f"missing-{number}").exists():
        raise ImportError(NONE)
    del cache_dir  # g++ keeps its own
    count = folder / "count"
    return _Device(number, folder), int(count.read_text()) if count.exists() else 1


class _Device(SimulatedDevice):
    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(cuda_device.compiled())
        self._broken, self._full = folder / f"broken-{number}", folder / f"full-{number}"

    def allocate(self, nbytes: int) -> SimulatedMemory:
        if self._full.exists():
            raise MemoryError(f"{nbytes} bytes of a simulated device")
        return super().allocate(nbytes)

    def stream(self) -> SimulatedStream:
        return _Stream(self, self._broken)


class _Stream(SimulatedStream):
    def __init__(self, device: SimulatedDevice, broken: Path) -> None:
        super().__init__(device)
        self._broken = broken

    def synchronize(self) -> None:
        if self._broken.exists():
            # The next process finds a device that has been reset.
            self._broken.unlink(missing_ok=True)
            raise DeviceLostError(ILLEGAL)
        super().synchronize()


if __name__ == "__main__":
    devices.FIND = "simulated_device:find"
    server.main()
