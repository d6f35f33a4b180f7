"""The CUDA kernels have NumPy's bits in every row of the table, and mistakes in them are caught.

They run within the whole backend, compiled for the CPU from their sources and from the PTX that
NVRTC makes of them. The last tests do what tests/gpu does on a GPU.
"""

import math
import os
import subprocess
import sys
import zlib
from functools import cache

import pytest

from cudasim.module import FORWARD, REVERSE, Mode, finding, watched
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda import launches
from gradwire_server.backends.cuda.programs import every_kernel
from gradwire_server.errors import DeviceLostError
from support.kernels import cuda_device, cuda_programs, cuda_table, simulated_device
from support.kernels.cuda_device import SOURCES, simulated_cuda
from support.kernels.cuda_mutants import MUTANTS
from support.kernels.cuda_table import needs_cuda_packages, needs_simulator
from support.processes import environment

pytestmark = needs_simulator


def _kernels(rows):
    return frozenset(kernel for row in rows for kernel in row.kernels)


def test_the_table_launches_every_kernel_there_is_and_no_other():
    assert _kernels(cuda_table.rows()) == set(every_kernel())


@cache
def _backends(module):
    """Return three for all rows, so that each row finds what others left in memory.

    With no multiprocessors each thread does as much as it ever does.
    """
    devices = [(FORWARD, 132), (REVERSE, 1), (11, 0)]
    return [simulated_cuda(module, order=o, multiprocessors=count) for o, count in devices]


@pytest.mark.parametrize("case", cuda_table.cases(), ids=lambda case: case.name)
def test_every_row_has_the_bits_of_numpy_on_some_device(case):
    for row in cuda_table.rows_of(case):
        row.check(_backends(cuda_device.compiled())[zlib.crc32(row.name.encode()) % 3])


def test_threads_that_loop_over_several_numbers_have_the_bits_of_numpy(monkeypatch):
    monkeypatch.setattr(launches, "_MOST_LOOPED", 2)
    looping = [
        row
        for row in cuda_table.rows()
        if any(kernel.startswith("fill_bands<") for kernel in row.kernels)
        and math.prod(row.case.plan.output_shape) > 512
    ]
    assert looping
    backend = simulated_cuda(cuda_device.compiled())
    for row in looping:
        row.check(backend)


_WATCHED = """
import sys
from support.kernels import cuda_device, cuda_table
from cudasim.module import Mode

rows = cuda_table.watched_rows()
kernels = frozenset(kernel for row in rows for kernel in row.kernels)
module = cuda_device.compiled(Mode[sys.argv[1]], kernels)
backends = [cuda_device.simulated_cuda(module, multiprocessors=count) for count in (132, 0)]
for number, row in enumerate(rows):
    print(row.name, flush=True)
    row.check(backends[number % 2])
print(len(rows), "rows")
"""


@needs_cuda_packages
@pytest.mark.parametrize("mode", [Mode.ADDRESS, Mode.THREAD])
def test_no_sanitizer_finds_anything_in_small_rows(mode):
    found, text = watched(_WATCHED, mode.name, mode=mode)
    assert not found, text[-5000:]
    assert f"{len(cuda_table.watched_rows())} rows" in text


@needs_cuda_packages
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.heavy)])
def test_rows_have_the_bits_of_numpy_as_nvrtc_compiles_them(step):
    for number, row in enumerate([*cuda_table.few_rows(), *cuda_table.rows()[::step]]):
        row.check(_backends(cuda_programs.ptx(90))[number % 3])


@needs_cuda_packages
def test_some_rows_have_the_bits_of_numpy_on_newer_and_older_devices():
    """For 7.5 conversions are arithmetic of CUDA's own headers, which cudasim replaces."""
    own = [row for case in cuda_table.own_cases() for row in cuda_table.rows_of(case)]
    conversions = [row for row in own if row.formats[0] != row.formats[1]][::21]
    for architecture, rows in ((120, cuda_table.watched_rows()), (75, conversions)):
        backend = simulated_cuda(cuda_programs.ptx(architecture, _kernels(rows)))
        for row in rows:
            row.check(backend)


@needs_cuda_packages
@pytest.mark.parametrize("huge", cuda_table.huge(), ids=lambda huge: huge.name)
def test_the_end_of_a_huge_tensor_has_the_bits_of_numpy(huge, monkeypatch):
    # Then the last blocks of every kernel are those that write the end.
    monkeypatch.setattr(launches, "_MOST_LOOPED", 2**31 - 1)
    assert max(math.prod(huge.plan.input_shape), math.prod(huge.plan.output_shape)) > 2**31
    huge.check(cuda_device.compiled())


@needs_cuda_packages
def test_the_end_of_huge_rows_has_the_bits_of_numpy():
    cuda_table.check_huge_rows(cuda_device.compiled())


def test_every_mutant_still_changes_one_place():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == 29
    for mutant in MUTANTS:
        mutant.changed((SOURCES / mutant.source).read_text())


@needs_cuda_packages
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant):
    if mutant.mode is Mode.PLAIN:
        with pytest.raises((AssertionError, DeviceLostError)) as caught:
            mutant.run()
        found = finding(text := str(caught.value))
    else:
        place = MUTANTS.index(mutant)
        program = f"from support.kernels.cuda_mutants import MUTANTS; MUTANTS[{place}].run()"
        found, text = watched(program, mode=mutant.mode)
    assert found == mutant.finding, text[-3000:]


def test_the_few_rows_for_the_sanitizer_launch_every_kernel_and_print_the_hash_of_numpy():
    rows = cuda_table.few_rows()
    assert {kernel for row in rows for kernel in row.kernels} == set(every_kernel())
    command = [sys.executable, cuda_table.__file__, "sim"]
    env = environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    told = subprocess.check_output(command, text=True, env=env)  # noqa: S603
    assert told.split() == [cuda_table.digest(NumpyCpu(), rows)]


def test_columns_of_long_rows_are_told_apart():
    cuda_table.check_rows(simulated_cuda(cuda_device.compiled()), columns=2003, period=101)


def test_a_lost_device_stays_lost_for_its_process(tmp_path):
    simulated_device.check_loss(tmp_path, {})


@pytest.mark.slow
def test_a_server_replaces_a_lost_device_and_loses_no_call(tmp_path):
    simulated_device.check_replacement(tmp_path, {})
