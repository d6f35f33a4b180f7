"""The compiled backend where there is numba."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradwire_server import backends
from gradwire_server.backends import Backend
from support.processes import environment

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

_PACKAGE = "gradwire_server.backends.numba_cpu"


@contextmanager
def small_shares() -> Generator[None]:
    """Let threads share tensors of the sizes that tests have time for, and wake up for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.backend._WORK_OF_A_THREAD", 1 << 10)
        patch.setattr(f"{_PACKAGE}.backend._WAKING", 0)
        yield


@cache
def compiled(threads: int) -> Backend:
    backend, _ = backends.choose("numba_cpu", threads=threads)
    backend.warm_up()
    return backend


@contextmanager
def streaming(threads: int) -> Generator[Backend]:
    """Let a compiled backend write all results past the caches, short rows as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{_PACKAGE}.jobs._LEAST_STREAMED", 0)
        made: Backend = import_module(_PACKAGE).NumbaCpu(threads=threads, streamed_bytes=0)
        made.warm_up()
        yield made


def run_program(
    program: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    beside = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", beside + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(env),
    )
