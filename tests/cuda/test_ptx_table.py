"""The CUDA kernels as NVRTC compiles them have NumPy's bits in every row of the table."""

from __future__ import annotations

from functools import cache

from support.kernels import cuda_programs, cuda_table
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator
from support.kernels.cuda_programs import SimulatedCuda

pytestmark = [needs_simulator, needs_cuda_packages]


@cache
def _device(architecture: int, multiprocessors: int) -> SimulatedCuda:
    return SimulatedCuda(cuda_programs.ptx(architecture), multiprocessors=multiprocessors)


def test_every_row_has_the_bits_of_numpy() -> None:
    for number, row in enumerate(cuda_table.rows()):
        row.check(_device(90, (132, 1, 0)[number % 3]))


def test_small_rows_have_the_bits_of_numpy_on_newer_devices() -> None:
    rows = cuda_table.watched_rows()
    kernels = frozenset(kernel for row in rows for kernel in row.kernels)
    device = SimulatedCuda(cuda_programs.ptx(120, kernels))
    for row in rows:
        row.check(device)


def test_conversions_of_older_devices_have_the_bits_of_numpy() -> None:
    """For 7.5 they are integer arithmetic of CUDA's own headers, which cudasim replaces."""
    rows = [
        row
        for row in cuda_table.rows()
        if row.formats[0] != row.formats[1] and row.case in cuda_table.own_cases()
    ][::7]
    assert {one.name for row in rows for one in row.formats} >= {"bfloat16", "float16"}
    kernels = frozenset(kernel for row in rows for kernel in row.kernels)
    device = SimulatedCuda(cuda_programs.ptx(75, kernels))
    for row in rows:
        row.check(device)
