"""What is freed stays at hand where the settings say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Blocks of memory are taken, written and freed again; page faults of the last time are told.
_BLOCKS = """
import ctypes, resource, sys
from gradwire_server.scheduling import malloc

told = malloc.keep(int(sys.argv[1]))
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
size, count = 8 << 20, 5
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(library.malloc(ctypes.c_size_t(size))) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        library.free(block)
print(int(told), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 5 * (8 << 20) // 4096


def blocks(keep: int) -> tuple[int, int]:
    """Return whether malloc could be told, and how often a page had to be had from the system."""
    command = [sys.executable, "-c", _BLOCKS, str(keep)]
    told, faults = subprocess.check_output(command, text=True).split()  # noqa: S603 - our own code
    return int(told), int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_memory_that_is_kept_is_not_had_from_the_system_again() -> None:
    told, faults = blocks(64 << 20)
    if not told:
        pytest.skip("this C library has no mallopt")
    assert faults < _PAGES / 100


def test_nothing_is_said_to_malloc_where_nothing_is_to_be_kept() -> None:
    told, _ = blocks(0)
    assert not told
