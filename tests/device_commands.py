"""Servers whose devices are simulated, for tests to end and to fail."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import simulated_device
from processes import Command, running_command

TESTS = Path(__file__).parent
PROGRAM = (str(TESTS / "simulated_device.py"),)
FLAGS = ("--backend", "cuda", "--log-level", "info")


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of a server whose devices are told by files in a folder."""
    paths = (str(TESTS), os.environ.get("PYTHONPATH", ""))
    return {
        simulated_device.FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


@contextmanager
def serving(folder: Path, *flags: str, devices: int = 1) -> Generator[Command]:
    """Run a server on simulated devices, which files in the folder tell to fail."""
    (folder / "count").write_text(str(devices))
    with running_command(
        *FLAGS, *flags, log=folder / "log", env=variables(folder), program=PROGRAM
    ) as command:
        yield command


def device(command: Command, number: int = 0) -> int:
    """Return the process that serves last as a device."""
    return int(re.findall(rf" device serves device={number} pid=(\d+)", command.log)[-1])
