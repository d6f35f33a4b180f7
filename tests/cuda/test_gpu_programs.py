"""What tests/gpu does on a GPU does the same on a simulated device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.programs import every_kernel
from gradwire_server.plans import Plan
from support.kernels import cuda_device, cuda_table, faulty_device, gpu_rows, service_load
from support.kernels.cuda_backends import needs_simulator
from support.kernels.cuda_device import SimulatedDevice
from support.kernels.cuda_table import check_rows
from support.oracles import oracles
from support.processes import environment
from support.servers import serving

pytestmark = needs_simulator

MIB = 1 << 20
ENVIRONMENT = environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


def _backend() -> Cuda:
    return Cuda(SimulatedDevice(cuda_device.compiled()), memory_bytes=256 * MIB)


def test_the_few_rows_for_the_sanitizer_launch_every_kernel() -> None:
    launched = {kernel for row in gpu_rows.few_rows() for kernel in row.kernels}
    assert launched == set(every_kernel())


def test_their_program_prints_the_hash_of_numpys_bits() -> None:
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, gpu_rows.__file__, "--device", "sim"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout.split() == [cuda_table.digest(NumpyCpu(), gpu_rows.few_rows())]


@pytest.mark.parametrize("columns", [1, 7, 2003])
def test_columns_of_long_rows_are_told_apart(columns: int) -> None:
    check_rows(_backend(), columns=columns, period=101)


def test_a_column_that_is_taken_for_another_is_found() -> None:
    class Shifted(NumpyCpu):
        def apply(self, plan: Plan, x: oracles.Tensor, y: oracles.Tensor) -> None:
            super().apply(plan, x, y)
            y[:, 9:] = y[:, 1:-8].copy()

    with pytest.raises(AssertionError):
        check_rows(Shifted(), columns=64, period=13)


@pytest.mark.slow
def test_a_server_under_load_gives_numpys_bits() -> None:
    with serving(backend=_backend()) as server:
        assert service_load.check_load(server.address, threads=3, turns=1) == 3 * 7


def test_a_lost_device_stays_lost_for_its_process(tmp_path: Path) -> None:
    faulty_device.check_loss(tmp_path, kind="sim", env=ENVIRONMENT)


@pytest.mark.slow
def test_a_server_replaces_a_lost_device_and_loses_no_call(tmp_path: Path) -> None:
    faulty_device.check_replacement(tmp_path, kind="sim")
