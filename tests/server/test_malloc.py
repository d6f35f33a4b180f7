"""What is freed stays at hand, unless the environment sets malloc up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# A block of memory is taken, written and freed again; page faults of the last time are told.
_BLOCKS = """
import ctypes, resource
from gradwire_server.scheduling import malloc

malloc.keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
size = 8 << 20
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(library.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, size)
    library.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = (8 << 20) // 4096

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps memory")


def faults(**environment: str) -> int:
    """Return how often a page had to be had from the system."""
    command = [sys.executable, "-c", _BLOCKS]
    return int(subprocess.check_output(command, env=os.environ | environment))  # noqa: S603 - our own code


def test_memory_that_is_kept_is_not_had_from_the_system_again() -> None:
    assert faults() < _PAGES / 100


def test_variables_of_malloc_are_left_in_force() -> None:
    assert faults(MALLOC_MMAP_THRESHOLD_="65536") > _PAGES / 2
