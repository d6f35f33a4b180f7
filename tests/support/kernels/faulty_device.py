"""A device that does what no kernel of ours may: it writes to an address that is nobody's.

An error of that kind stays with the process that made it. So such devices are those of processes
of their own: of a program that shows it, and of a worker that its supervisor replaces.

    python -m support.kernels.faulty_device KIND FOLDER          computes, loses it, computes again
    python -m support.kernels.faulty_device KIND FOLDER FLAGS    is gradwire-server, but for it

KIND is cuda, or sim for a simulated device. The error comes with the next launch once there is a
file `stray` in FOLDER.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.errors import DeviceLostError
from support.kernels import cuda_device, cuda_table
from support.kernels.cuda_device import SimulatedDevice

# The same of the supervisor and of its workers.
_KIND, _FOLDER = "FAULTY_DEVICE", "FAULTY_DEVICE_FOLDER"

_STRAY = 'extern "C" __global__ void stray(int* nobodys) { *nobodys = 1; }'


class FaultyDevice:
    """A device, but for one launch.

    device  the one that it is otherwise
    stray   what writes where it must not
    """

    cpu_work = 0

    def __init__(self, device: Any, folder: Path, stray: Callable[[], None]) -> None:
        self._device, self._file, self._stray = device, folder / "stray", stray

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def stream(self) -> FaultyStream:
        return FaultyStream(self._device.stream(), self._before_launch)

    def _before_launch(self) -> None:
        with suppress(FileNotFoundError):
            self._file.unlink()
            self._stray()


class FaultyStream:
    """A stream of a faulty device."""

    def __init__(self, stream: Any, before_launch: Callable[[], None]) -> None:
        self._stream, self._before_launch = stream, before_launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def launch(self, *arguments: Any) -> None:
        self._before_launch()
        self._stream.launch(*arguments)


def opened(kind: str, folder: Path, **more: str) -> FaultyDevice:
    """Open a device; more are the arguments of CupyDevice."""
    if kind == "sim":
        simulated = SimulatedDevice(cuda_device.compiled())
        stray = partial(setattr, simulated, "broken", "an illegal memory access was encountered")
        return FaultyDevice(simulated, folder, stray)
    return FaultyDevice(cupy_device.CupyDevice(**more), folder, _write_astray)


def check() -> int:
    return 1


def open_device(*, cache_dir: str) -> FaultyDevice:
    return opened(os.environ[_KIND], Path(os.environ[_FOLDER]), cache_dir=cache_dir)


def check_loss(folder: Path, *, kind: str, env: Mapping[str, str]) -> None:
    """Assert that a process that loses its device says so from then on, and gives no bits."""
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, __file__, kind, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["computed", "lost", "lost"], done.stdout


def check_replacement(folder: Path, *, kind: str) -> None:
    """Assert that a server whose device is lost under load loses no call and serves again."""
    service_load: Any = import_module("support.kernels.service_load")
    processes: Any = import_module("support.processes")
    paths = filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
    env = {_KIND: kind, _FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    flags = ("--backend", "cuda", "--log-level", "info")
    program = (__file__, kind, str(folder))
    with processes.running_command(*flags, log=folder / "log", env=env, program=program) as command:
        service_load.check_load(command.address, threads=2, turns=1)
        timer = threading.Timer(0.2, (folder / "stray").touch)
        timer.start()
        turns = 0
        while turns < 3 or (folder / "stray").exists() or timer.is_alive():
            service_load.check_load(command.address, threads=4, turns=1)
            turns += 1
        command.wait_for_log(" device lost ")
        command.wait_for_log(" worker serves ", times=2)
        service_load.check_load(command.address, threads=2, turns=1)


def _write_astray() -> None:
    """Have the driver find the write; what CUDA is asked for after that fails too."""
    cupy: Any = import_module("cupy")
    numpy: Any = import_module("numpy")
    cupy.RawKernel(_STRAY, "stray")((1,), (1,), (numpy.uint64(8),))
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return
    raise AssertionError("a write to address 8 went unnoticed")


def _lose(kind: str, folder: Path) -> None:
    device: Any = opened(kind, folder)
    backend = Cuda(device, memory_bytes=256 << 20)
    row, other = cuda_table.watched_rows()[:2]
    row.check(backend)
    said = ["computed"]
    (folder / "stray").touch()
    for one in (row, other):
        try:
            one.result(backend)
        except DeviceLostError:
            said.append("lost")
        else:
            said.append("went on")
    sys.stdout.write(" ".join(said) + "\n")
    sys.stdout.flush()
    # What CuPy gives back as the interpreter ends would complain of the lost device.
    os._exit(0)


def _main() -> None:
    kind, folder, *flags = sys.argv[1:]
    if not flags:
        _lose(kind, Path(folder))
    backends: Any = import_module("gradwire_server.backends")
    backends.DEVICES = "support.kernels.faulty_device"
    sys.argv = [sys.argv[0], *flags]
    import_module("gradwire_server.__main__").main()


if __name__ == "__main__":
    _main()
