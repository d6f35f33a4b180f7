"""A simulated device for the process of a device, which tests tell to fail through a folder.

python tests/simulated_device.py FLAGS    is gradwire-server, but for what finds its devices
"""

from __future__ import annotations

import os
from pathlib import Path

import cuda_device
from cuda_device import SimulatedDevice, SimulatedMemory
from gradwire_server import __main__ as server
from gradwire_server import devices

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
        self._why, self._breaks = "", folder / f"broken-{number}"
        super().__init__(cuda_device.compiled())
        self._full = folder / f"full-{number}"

    @property
    def broken(self) -> str:
        """Why it fails; a process that follows finds a device that works."""
        if self._breaks.exists():
            self._breaks.unlink(missing_ok=True)
            self._why = ILLEGAL
        return self._why

    @broken.setter
    def broken(self, why: str) -> None:
        self._why = why

    def allocate(self, nbytes: int) -> SimulatedMemory:
        if self._full.exists():
            raise MemoryError(f"{nbytes} bytes of a simulated device")
        return super().allocate(nbytes)


if __name__ == "__main__":
    devices.FIND = "simulated_device:find"
    server.main()
