"""Simulated GPUs for real servers, which tests tell to fail through files in a folder.

    python -m support.kernels.simulated_device FLAGS    is gradwire-server, but for its devices
    python -m support.kernels.simulated_device          computes, loses its GPU, and says so

With REAL_DEVICE=1 it is this machine's GPU, whose failures stay with the process that made them:
broken-0 has it write to an address that is nobody's.

Files, N being the number of a GPU; those of one failure are taken away by the first process that
meets them:

count      how many GPUs there are; 1 without it
missing    no GPU is found
absent-N   the GPU cannot be opened, by whatever process
waits-N    processes that open the GPU wait until the file is gone
load-N     one process loses the GPU as it opens it
broken-N   one process loses the GPU as it next uses it
hung-N     one process finds that the GPU never answers again
full-N     the GPU has no memory left
unkillable SIGKILL does not end the first process that the supervisor sends it, as where a driver
           holds a process
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gradwire import RetryPolicy
from gradwire_server import __main__ as server
from gradwire_server import backends
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.cupy_device import CupyDevice, CupyStream
from gradwire_server.backends.cuda.device import Device
from gradwire_server.backends.cuda.programs import Buffer, Launch
from gradwire_server.errors import DeviceLostError
from gradwire_server.processes import supervised
from support.kernels import cuda_device
from support.kernels.cuda_device import SimulatedDevice, SimulatedMemory
from support.processes import Command, environment, running_command

# The variables that name the folder, and that ask for the real device.
FOLDER, REAL = "SIMULATED_DEVICES", "REAL_DEVICE"
NONE = "the NVIDIA driver sees no device"
ILLEGAL = "an illegal memory access was encountered"
AWAY = "all CUDA-capable devices are busy or unavailable"


def check() -> int:
    folder = Path(os.environ[FOLDER])
    if (folder / "missing").exists():
        raise ImportError(NONE)
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = folder / "count"
    there = int(count.read_text()) if count.exists() else 1
    return there if named is None else len(named.split(","))


def open_device(*, cache_dir: str) -> Device:
    if os.environ.get(REAL):
        return _RealDevice(cache_dir=cache_dir)
    folder, (number,) = Path(os.environ[FOLDER]), os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    while (folder / f"waits-{number}").exists():
        time.sleep(0.01)
    if (folder / f"absent-{number}").exists() or _takes(folder / f"load-{number}"):
        raise DeviceLostError(AWAY)
    return _Device(number, folder)


class _Device(SimulatedDevice):
    def __init__(self, number: str, folder: Path) -> None:
        self._why, self._number, self._folder = "", number, folder
        super().__init__(cuda_device.compiled())

    @property
    def broken(self) -> str:
        """Why it fails; a process that follows finds a device that works."""
        if _takes(self._folder / f"hung-{self._number}"):
            threading.Event().wait()
        if _takes(self._folder / f"broken-{self._number}"):
            self._why = ILLEGAL
        return self._why

    @broken.setter
    def broken(self, why: str) -> None:
        self._why = why

    def allocate(self, nbytes: int) -> SimulatedMemory:
        if (self._folder / f"full-{self._number}").exists():
            raise MemoryError(f"{nbytes} bytes of a simulated device")
        return super().allocate(nbytes)


class _RealStream(CupyStream):
    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        if _takes(Path(os.environ[FOLDER], "broken-0")):
            # The driver finds the write; what CUDA is asked for after that fails too.
            cupy: Any = import_module("cupy")
            stray = 'extern "C" __global__ void stray(int* nobodys) { *nobodys = 1; }'
            cupy.RawKernel(stray, "stray")((1,), (1,), (np.uint64(8),))
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                cupy.cuda.runtime.deviceSynchronize()
        super().launch(launch, addresses)


class _RealDevice(CupyDevice):
    cpu_work = 0

    def stream(self) -> CupyStream:
        return _RealStream(self)


def _takes(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


PROGRAM = (__file__,)
FLAGS = ("--backend", "cuda", "--log-level", "info")


def variables(folder: Path) -> dict[str, str]:
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    return {
        FOLDER: str(folder),
        # NumPy takes the place of compiled code, which takes a worker longer to load than the rest.
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


@contextmanager
def serving(
    folder: Path, *flags: str, devices: int = 1, env: Mapping[str, str] = MappingProxyType({})
) -> Generator[Command]:
    """Run a server on simulated devices, which files in the folder tell to fail."""
    (folder / "count").write_text(str(devices))
    every = {**variables(folder), **env}
    with running_command(*FLAGS, *flags, log=folder / "log", env=every, program=PROGRAM) as command:
        yield command


def check_loss(folder: Path, env: Mapping[str, str]) -> None:
    """Assert that a process that loses its device says so from then on, and gives no bits."""
    every = environment({"CUDA_VISIBLE_DEVICES": "0", **variables(folder), **env})
    told = subprocess.check_output([sys.executable, *PROGRAM], env=every, text=True)  # noqa: S603
    assert told.split() == ["lost", "lost"]


def check_replacement(folder: Path, env: Mapping[str, str]) -> None:
    """Assert that a server whose device is lost under load loses no call and serves again."""
    # Here, since each server imports this module.
    load: Any = import_module("support.load")
    retry = RetryPolicy(max_attempts=60, max_backoff_s=0.5)
    with (
        serving(folder, env=env) as command,
        load.Callers(command.address, "unary", "stream", "many", "sums", retry=retry) as callers,
    ):
        callers.wait_for_more()
        (folder / "broken-0").touch()
        command.wait_for_log(" device lost ")
        command.wait_for_log(" worker serves ", times=2)
        callers.wait_for_more()
    callers.check()


def _lose(folder: Path) -> None:
    backend = Cuda(open_device(cache_dir=""), memory_bytes=256 << 20)
    cuda_table: Any = import_module("support.kernels.cuda_table")
    row, other = cuda_table.watched_rows()[:2]
    row.check(backend)
    (folder / "broken-0").touch()
    for one in (row, other):
        try:
            one.result(backend)
        except DeviceLostError:
            sys.stdout.write("lost ")
    sys.stdout.flush()
    # What CuPy gives back as the interpreter ends would complain of the lost device.
    os._exit(0)


_kill = os.kill
_spared = set[int]()


def _kill_in_vain(pid: int, number: int) -> None:
    """Send a signal, but no SIGKILL to the process that got the first one."""
    if number == signal.SIGKILL and (not _spared or pid in _spared):
        _spared.add(pid)
        return
    _kill(pid, number)


if __name__ == "__main__":
    if not sys.argv[1:]:
        _lose(Path(os.environ[FOLDER]))
    if (Path(os.environ[FOLDER]) / "unkillable").exists():
        os.kill = _kill_in_vain
        # After which a process that SIGKILL has not ended counts as held.
        supervised.__dict__["_KILL_S"] = 1.0
    backends.DEVICES = "support.kernels.simulated_device"
    server.main()
