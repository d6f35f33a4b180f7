"""The CUDA kernels, compiled for the CPU, have NumPy's bits in every row of the table."""

from __future__ import annotations

import math
import zlib
from functools import cache

import pytest

from cudasim import child
from cudasim.compiler import Mode
from cudasim.module import FORWARD, REVERSE
from gradwire_server.backends.cuda.programs import every_kernel
from support.kernels import cuda_device, cuda_table
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator
from support.kernels.cuda_programs import SimulatedCuda
from support.kernels.kernel_table import Case

pytestmark = needs_simulator

# Orders of threads, and multiprocessors: with none each thread does as much as it ever does.
_DEVICES = [(FORWARD, 132), (REVERSE, 1), (11, 0)]

_WATCHED = """
import sys
from support.kernels import cuda_device
from support.kernels import cuda_programs
from support.kernels import cuda_table
from cudasim.compiler import Mode

rows = cuda_table.watched_rows()
kernels = frozenset(kernel for row in rows for kernel in row.kernels)
module = cuda_device.compiled(Mode[sys.argv[1]], kernels)
devices = [cuda_programs.SimulatedCuda(module, multiprocessors=count) for count in (132, 0)]
for number, row in enumerate(rows):
    print(row.name, flush=True)
    row.check(devices[number % 2])
print(len(rows), "rows")
"""


@cache
def _device(order: int, multiprocessors: int) -> SimulatedCuda:
    return SimulatedCuda(cuda_device.compiled(), order=order, multiprocessors=multiprocessors)


def test_the_table_launches_every_kernel_there_is_and_no_other() -> None:
    launched = {kernel for row in cuda_table.rows() for kernel in row.kernels}
    assert launched == set(every_kernel())


@pytest.mark.parametrize("case", cuda_table.cases(), ids=lambda case: case.name)
def test_every_row_has_the_bits_of_numpy_on_some_device(case: Case) -> None:
    for row in cuda_table.rows_of(case):
        row.check(_device(*_DEVICES[zlib.crc32(row.name.encode()) % len(_DEVICES)]))


def test_threads_that_loop_over_several_numbers_have_the_bits_of_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire_server.backends.cuda.launches._MOST_LOOPED", 2)
    looping = [row for row in cuda_table.rows() if _loops(row)]
    assert looping
    for row in looping:
        row.check(_device(*_DEVICES[0]))


def _loops(row: cuda_table.Row) -> bool:
    large = math.prod(row.case.plan.output_shape) > 512
    return large and any(kernel.source == "fill_bands.cu" for kernel in row.kernels)


@needs_cuda_packages
@pytest.mark.parametrize("mode", [Mode.ADDRESS, Mode.THREAD])
def test_no_sanitizer_finds_anything_in_small_rows(mode: Mode) -> None:
    outcome = child.run(_WATCHED, mode.name, mode=mode)
    assert not outcome.finding, outcome.text[-5000:]
    assert f"{len(cuda_table.watched_rows())} rows" in outcome.text
