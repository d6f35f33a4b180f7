"""GPUs of this machine, and their division among the workers.

The supervisor never creates a CUDA context: it counts GPUs in a short-lived process, `python -m
gradwire_server.processes.gpus MODULE`. Each worker then sees one GPU, by the variable
CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from gradwire_server import backends
from gradwire_server.config.settings import Settings
from gradwire_server.processes.supervised import VISIBLE_DEVICES, module_arguments

# CuPy's import and the driver's start take about a second; a hanging driver never returns.
_COUNT_S = 60.0


def chosen(settings: Settings) -> tuple[str, ...]:
    """Return the GPUs that the settings select, by their names in CUDA_VISIBLE_DEVICES.

    Raises ValueError, with the reason, if one is missing.
    """
    count, outer = _count(), os.environ.get(VISIBLE_DEVICES)
    numbers = settings.cuda_numbers or range(count)
    if max(numbers) >= count:
        limit = "" if outer is None else f" ({VISIBLE_DEVICES} is {outer})"
        raise ValueError(
            f"--cuda-devices is {settings.cuda_devices}, and CUDA sees {count}{limit}; "
            f"give numbers from 0 to {count - 1}"
        )
    return tuple(visible(number, outer) for number in numbers)


def visible(number: int, outer: str | None) -> str:
    """Return the name of a GPU for CUDA_VISIBLE_DEVICES.

    `outer` is the variable's old value.
    """
    return str(number) if outer is None else outer.split(",")[number].strip()


def worker_count(settings: Settings, devices: Sequence[str]) -> int:
    """Return the number of workers.

    Raises ValueError unless it is a multiple of the devices.
    """
    workers, count = settings.workers or len(devices), len(devices)
    if workers % count:
        raise ValueError(
            f"--workers is {workers} and there are {count} GPUs; a multiple of {count} is needed, "
            "or 0 for one worker on each, or other --cuda-devices"
        )
    return workers


def _count() -> int:
    """Return the number of GPUs.

    Raises ValueError, with the reason, if CUDA cannot run.
    """
    child = subprocess.Popen(  # noqa: S603 - this module
        [sys.executable, *module_arguments(__name__), backends.DEVICES],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told, _ = child.communicate(timeout=_COUNT_S)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: nothing ends a process that hangs in a driver
        told = f"the NVIDIA driver has not answered for {_COUNT_S:.0f} s"
    if child.returncode:
        told = f"the process that counts GPUs ended with status {child.returncode}"
    if not told.isdecimal():
        raise ValueError(backends.cannot_run_cuda(told))
    return int(told)


def _tell(module: str) -> None:
    """Write the number of GPUs, or the reason for its absence."""
    try:
        told = str(import_module(module).check())
    except (ImportError, RuntimeError, OSError) as error:
        told = " ".join(str(error).split())  # CuPy's messages may have many lines
    sys.stdout.write(told)


if __name__ == "__main__":
    _tell(sys.argv[1])
