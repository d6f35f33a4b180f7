"""The CUDA backend on this machine's GPU; skipped, with the reason, where it has none."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan
from support.kernels import cuda_table
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.oracles import oracles

GIB = 1 << 30


@pytest.fixture(scope="session")
def cuda():
    """Return the backend, ready to compute."""
    try:
        backend = Cuda(cupy_device.CupyDevice(), memory_bytes=GIB).on_device()
    except ImportError as error:
        pytest.skip(f"cuda cannot run here: {error}")
    backend.warm_up()
    return backend


needs_gpu = pytest.mark.usefixtures("cuda")


def test_every_row_has_the_bits_of_numpy(cuda):
    for row in cuda_table.rows():
        row.check(cuda)


def test_threads_at_once_have_the_bits_of_numpy(cuda):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: row.check(cuda), cuda_table.rows()))


def test_more_than_its_limit_is_an_error_that_passes(cuda):
    """The plan moves the first axis: it cannot be cut into parts."""
    plan = Plan.build([maps.linear(1 << 14, 1 << 14 | 1), None], (1 << 14, 1 << 14))
    x = np.zeros(plan.input_shape, np.float32)
    with pytest.raises(MemoryError):
        applied(cuda, plan, x, np.float16)
    cuda_table.rows()[0].check(cuda)


@contextmanager
def _filled():
    """Leave the device less than 2 MiB, as another process might."""
    cuda = import_module("cupy").cuda
    held = []
    for size in (GIB, 64 << 20, 2 << 20):
        with contextlib.suppress(cuda.runtime.CUDARuntimeError):
            while True:
                held.append(cuda.Memory(size))
    try:
        yield
    finally:
        held.clear()


@needs_gpu
def test_a_device_that_others_filled_gives_no_wrong_bits_and_computes_once_there_is_room():
    backend = Cuda(cupy_device.CupyDevice(), memory_bytes=4 * GIB)
    up = maps.linear(1024, 2048)
    # Larger than the pinned memory.
    plan = oracles.adjoint(Plan.build([None, up, up], (8, 1024, 1024)))
    x = np.random.default_rng(4).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    backend.warm_up()
    with _filled(), contextlib.suppress(MemoryError):
        oracles.same_bits(applied(backend, plan, x, np.float32), expected)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


@needs_gpu
def test_without_any_room_there_is_a_memory_error():
    device = cupy_device.CupyDevice()
    device.limit_memory(2 * GIB)
    with _filled(), pytest.raises(MemoryError):
        device.allocate(GIB)
    assert device.allocate(1 << 20).ptr
    with pytest.raises(MemoryError):
        device.allocate(3 * GIB)
    assert import_module("cupy").cuda.runtime.memGetInfo()[0] > GIB


@needs_gpu
def test_a_launch_of_more_than_2_to_the_31_numbers_has_the_bits_of_numpy():
    """Rows cannot be cut into parts: one launch reads 4 GiB and writes 6 GiB."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
    # Of some machines more memory comes as it is used than they say they have.
    host = 1 << 60 if os.environ.get("GRADWIRE_TEST_LARGE") else int(line.split()[1]) << 10
    device = import_module("cupy").cuda.runtime.memGetInfo()[0]
    for where, free in (("device", device), ("host", host)):
        if free < 12 * GIB:
            pytest.skip(
                f"the {where} has {free / GIB:.1f} GiB free; 12 are needed; GRADWIRE_TEST_LARGE=1 "
                f"where the host has more as it is used"
            )
    backend = Cuda(cupy_device.CupyDevice(), memory_bytes=12 * GIB)
    cuda_table.check_rows(backend, columns=2**30 + 8)


# Libraries ask the driver for what it need not have; that is no error of a kernel.
QUIET = {"memcheck": ["--report-api-errors=no"], "racecheck": []}


@needs_gpu
@pytest.mark.parametrize("tool", QUIET)
def test_compute_sanitizer_finds_nothing_and_the_bits_are_those_of_numpy(tool):
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = ["*/compute-sanitizer/compute-sanitizer", "*/bin/compute-sanitizer"]
    kept = [str(one) for place in places for one in sorted(packages.glob(place))]
    found = next(filter(None, [shutil.which("compute-sanitizer"), *kept]), None)
    if found is None:
        pytest.skip(
            "compute-sanitizer is missing; CUDA's toolkit or pip's cuda-toolkit[sanitizer] has it"
        )
    flags = [f"--tool={tool}", "--error-exitcode=86", *QUIET[tool]]
    done = subprocess.run(  # noqa: S603 - NVIDIA's tool on our own program
        [found, *flags, sys.executable, "-m", cuda_table.__name__],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    said = done.stdout + done.stderr
    if re.search(r"Device not supported|not supported on this (system|platform)", said):
        pytest.skip(f"compute-sanitizer cannot watch this device: {' '.join(said.split())[:300]}")
    assert done.returncode == 0, said[-4000:]
    assert re.search(r"(ERROR|RACECHECK) SUMMARY: 0 ", said), said[-4000:]
    assert cuda_table.digest(NumpyCpu(), cuda_table.few_rows()) in done.stdout.split()


def _of_service(name):
    """Import what needs the SDK and the server."""
    pytest.importorskip("grpc_reflection", reason="SDK and server need it")
    return pytest.importorskip(f"support.{name}", reason="SDK and server need it")


@needs_gpu
def test_threads_at_once_get_the_bits_of_numpy_from_a_server(tmp_path):
    flags = ("--backend", "cuda", "--log-level", "info")
    callers_of = _of_service("load").Callers
    with _of_service("processes").running_command(*flags, log=tmp_path / "log") as command:
        kinds = ("unary", "stream", "many", "large")
        with callers_of(command.address, *kinds, *kinds) as callers:
            for _ in range(4):
                callers.wait_for_more()
        callers.check()
        _check_heavy_calls(command.address)
        assert "device lost" not in command.log


def _check_heavy_calls(address):
    """Compare calls with so many multiplications for their bytes that the device computes them."""
    gradwire, server = import_module("gradwire"), import_module("gradwire_server")
    operator = gradwire.ops.JaxResizeGrad(method="lanczos5")
    x = np.random.default_rng(0).standard_normal((1, 16, 128, 128)).astype(np.float32)
    call = {"output_shape": (1, 64, 256, 256)}
    expected = server.LocalClient("numpy_cpu").evaluate(operator, x, **call)
    with gradwire.Client(address) as client, ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: client.evaluate(operator, x, **call), range(16)):
            oracles.same_bits(result, expected)


@needs_gpu
def test_a_lost_device_is_replaced_and_calls_in_flight_succeed(tmp_path):
    _of_service("kernels.simulated_device").check_replacement(tmp_path, {"REAL_DEVICE": "1"})


@needs_gpu
def test_a_stray_write_loses_the_device_for_the_process_that_made_it(tmp_path):
    _of_service("kernels.simulated_device").check_loss(tmp_path, {"REAL_DEVICE": "1"})
