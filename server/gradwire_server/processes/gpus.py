"""GPUs of this machine, and their division among the workers.

The supervisor never creates a CUDA context: it counts GPUs in a short-lived process, `python -m
gradwire_server.processes.gpus MODULE`. Each worker then sees one GPU, by the variable
CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
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
    count = _count()
    numbers = settings.cuda_numbers or range(count)
    if max(numbers) >= count:
        named = os.environ.get(VISIBLE_DEVICES)
        limit = "" if named is None else f" ({VISIBLE_DEVICES} is {named})"
        raise ValueError(
            f"--cuda-devices is {settings.cuda_devices}, and CUDA sees {count}{limit}; "
            f"give numbers from 0 to {count - 1}"
        )
    return tuple(visible(number, os.environ.get(VISIBLE_DEVICES)) for number in numbers)


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
        [sys.executable, *module_arguments(__name__), backends.DEVICES], stdout=subprocess.PIPE
    )
    try:
        told, _ = child.communicate(timeout=_COUNT_S)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: nothing ends a process that hangs in a driver
        raise _cannot_run(f"the NVIDIA driver has not answered for {_COUNT_S:.0f} s") from None
    if child.returncode:
        raise _cannot_run(f"the process that counts GPUs ended with status {child.returncode}")
    said = json.loads(told)
    if "count" not in said:
        raise _cannot_run(said["why"])
    return int(said["count"])


def _cannot_run(why: str) -> ValueError:
    return ValueError(backends.cannot_run_cuda(why))


def _tell(module: str) -> None:
    """Write the number of GPUs, or the reason for its absence.

    They go to standard output.
    """
    try:
        said = {"count": import_module(module).check()}
    except (ImportError, RuntimeError, OSError) as error:
        said = {"why": " ".join(str(error).split())}  # CuPy's messages may have many lines
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    _tell(sys.argv[1])
