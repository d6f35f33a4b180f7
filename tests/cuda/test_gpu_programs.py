"""What tests/gpu does on a GPU does the same on a simulated device."""

import os
import subprocess
import sys

import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.programs import every_kernel
from support.kernels import cuda_table, simulated_device
from support.kernels.cuda_backends import needs_simulator, simulated
from support.processes import environment

pytestmark = needs_simulator

ENVIRONMENT = environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def test_the_few_rows_for_the_sanitizer_launch_every_kernel_and_print_the_hash_of_numpy():
    rows = cuda_table.few_rows()
    assert {kernel for row in rows for kernel in row.kernels} == set(every_kernel())
    command = [sys.executable, cuda_table.__file__, "sim"]
    told = subprocess.check_output(command, text=True, env=ENVIRONMENT)  # noqa: S603
    assert told.split() == [cuda_table.digest(NumpyCpu(), rows)]


@pytest.mark.parametrize("columns", [1, 7, 2003])
def test_columns_of_long_rows_are_told_apart(columns):
    backend = Cuda(simulated(), memory_bytes=256 << 20)
    cuda_table.check_rows(backend, columns=columns, period=101)


def test_a_column_that_is_taken_for_another_is_found():
    class Shifted(NumpyCpu):
        def apply(self, plan, x, y):
            super().apply(plan, x, y)
            y[:, 9:] = y[:, 1:-8].copy()

    with pytest.raises(AssertionError):
        cuda_table.check_rows(Shifted(), columns=64, period=13)


def test_a_lost_device_stays_lost_for_its_process(tmp_path):
    simulated_device.check_loss(tmp_path, {})


@pytest.mark.slow
def test_a_server_replaces_a_lost_device_and_loses_no_call(tmp_path):
    simulated_device.check_replacement(tmp_path, {})
