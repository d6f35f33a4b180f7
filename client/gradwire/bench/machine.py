"""On which machine, and with what, a load test ran."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from gradwire._version import VERSION
from gradwire.bench.document import Machine

_PACKAGES: Final = ("grpcio", "numpy", "protobuf")


def machine() -> Machine:
    """Describe this machine."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return Machine(
        cpu=_cpu(),
        cores=cores,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        system=platform.platform(),
        python=platform.python_version(),
        versions={"gradwire": VERSION, **{name: _version(name) for name in _PACKAGES}},
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
