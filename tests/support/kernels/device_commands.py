"""Servers on simulated GPUs, for tests to end and to fail."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.kernels import simulated_device
from support.processes import Command, running_command

TESTS = Path(__file__).parents[2]
PROGRAM = (simulated_device.__file__,)
FLAGS = ("--backend", "cuda", "--log-level", "info")


def variables(folder: Path) -> dict[str, str]:
    paths = (str(TESTS), os.environ.get("PYTHONPATH", ""))
    return {
        simulated_device.FOLDER: str(folder),
        # NumPy takes the place of compiled code, which takes a worker longer to load than the rest.
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


@contextmanager
def serving(
    folder: Path,
    *flags: str,
    devices: int = 1,
    env: Mapping[str, str] | None = None,
    program: tuple[str, ...] = PROGRAM,
) -> Generator[Command]:
    """Run a server on simulated devices, which files in the folder tell to fail."""
    (folder / "count").write_text(str(devices))
    every = {**variables(folder), **(env or {})}
    with running_command(*FLAGS, *flags, log=folder / "log", env=every, program=program) as command:
        yield command
