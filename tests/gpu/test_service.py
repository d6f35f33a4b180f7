"""A server on a GPU under load gives NumPy's bits, also when its device is lost on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire_server.backends.cuda.backend import Cuda

NEEDS = "SDK and server need it"
service_load: Any = pytest.importorskip("support.kernels.service_load", reason=NEEDS)
faulty_device: Any = pytest.importorskip("support.kernels.faulty_device", reason=NEEDS)
pytest.importorskip("grpc_reflection", reason=NEEDS)

FLAGS = ("--backend", "cuda", "--log-level", "info")


def test_threads_at_once_get_the_bits_of_numpy(cuda: Cuda, tmp_path: Path) -> None:
    del cuda  # only that there is a device
    processes: Any = pytest.importorskip("support.processes")
    with processes.running_command(*FLAGS, log=tmp_path / "log") as command:
        assert service_load.check_load(command.address, threads=8, turns=4) == 8 * 4 * 7
        assert "device lost" not in command.log


def test_a_lost_device_is_replaced_and_calls_in_flight_succeed(cuda: Cuda, tmp_path: Path) -> None:
    del cuda
    faulty_device.check_replacement(tmp_path, kind="cuda")


def test_a_stray_write_loses_the_device_for_the_process_that_made_it(
    cuda: Cuda, tmp_path: Path
) -> None:
    del cuda
    check: Callable[..., None] = faulty_device.check_loss
    check(tmp_path, kind="cuda", env=dict(os.environ))
