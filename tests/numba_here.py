"""The compiled backend where there is numba."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend
from processes import environment

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

# Numbers that are worth waking another thread for: made few, small tensors are shared, too.
WORK_OF_A_THREAD = "gradwire_server.backends.numba_cpu.backend._WORK_OF_A_THREAD"


@cache
def compiled(threads: int) -> Backend:
    """Return the compiled backend of so many threads, ready to compute."""
    backend, _ = backends.choose("numba_cpu", threads=threads)
    backend.warm_up()
    return backend


def run_program(
    program: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python program that may import the modules beside this one."""
    beside = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", beside + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(env),
    )
