"""A GPU without memory for a call is an error that passes; one launch takes 2**31 numbers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.cuda_table import check_rows
from support.oracles import oracles

GIB = 1 << 30

# 4 GiB are read and 6 GiB written, on the host and on the device.
_NEEDED_BYTES = 12 * GIB
# Of some machines more memory comes as it is used than they say they have.
_ANYWAY = "GRADWIRE_TEST_LARGE"


@contextmanager
def _filled() -> Generator[None]:
    """Leave the device less than 2 MiB, as another process might."""
    cuda: Any = import_module("cupy").cuda
    held = list[Any]()
    for size in (GIB, 64 << 20, 2 << 20):
        with contextlib.suppress(cuda.runtime.CUDARuntimeError):
            while True:
                held.append(cuda.Memory(size))
    try:
        yield
    finally:
        held.clear()


def test_a_device_that_others_filled_gives_no_wrong_bits_and_computes_once_there_is_room(
    cuda: Cuda,
) -> None:
    del cuda  # only that there is a device
    backend = Cuda(cupy_device.CupyDevice(), memory_bytes=4 * GIB)
    up = maps.linear(1024, 2048)
    plan = oracles.adjoint(Plan.build([None, up, up], (8, 1024, 1024)))
    x = np.random.default_rng(5).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    backend.warm_up()
    with _filled(), contextlib.suppress(MemoryError):
        oracles.same_bits(applied(backend, plan, x, np.float32), expected)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


def test_without_any_room_there_is_a_memory_error() -> None:
    cuda: Any = pytest.importorskip("cupy").cuda
    try:
        device = cupy_device.CupyDevice()
    except ImportError as error:
        pytest.skip(f"cuda cannot run here: {error}")
    device.limit_memory(2 * GIB)
    with _filled(), pytest.raises(MemoryError):
        device.allocate(GIB)
    assert device.allocate(1 << 20).ptr
    with pytest.raises(MemoryError):
        device.allocate(3 * GIB)
    assert cuda.runtime.memGetInfo()[0] > GIB


def test_a_launch_of_more_than_2_to_the_31_numbers_has_the_bits_of_numpy(cuda: Cuda) -> None:
    """Rows cannot be cut into parts: one launch reads and writes them whole."""
    del cuda
    free = import_module("cupy").cuda.runtime.memGetInfo()[0]
    if free < _NEEDED_BYTES:
        pytest.skip(
            f"the device has {free / GIB:.1f} GiB free; {_NEEDED_BYTES / GIB:.0f} are needed"
        )
    host = _available()
    if host < _NEEDED_BYTES and not os.environ.get(_ANYWAY):
        pytest.skip(
            f"the host has {host / GIB:.1f} GiB free; {_NEEDED_BYTES / GIB:.0f} are needed; "
            f"{_ANYWAY}=1 where more comes as it is used"
        )
    backend = Cuda(cupy_device.CupyDevice(), memory_bytes=_NEEDED_BYTES)
    check_rows(backend, columns=2**30 + 8)


def _available() -> int:
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
