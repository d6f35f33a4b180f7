"""What of a real device can be had without one: what is missing is named."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from cuda_here import needs_cuda_packages
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.errors import DeviceLostError


def _without_cupy(program: str) -> str:
    code = f"import sys\nsys.modules['cupy'] = None\n{program}"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_backend_itself_needs_no_cupy() -> None:
    assert _without_cupy(
        "from gradwire_server.backends.cuda import backend, cupy_device\nprint('imported')"
    ).startswith("imported")


@needs_cuda_packages
@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_a_machine_without_a_driver_is_told_from_one_without_cupy() -> None:
    with pytest.raises(ImportError, match="there is no NVIDIA driver"):
        cupy_device.CupyDevice()


@needs_cuda_packages
def test_cupy_has_everything_that_is_called_on_a_device() -> None:
    cupy = import_module("cupy")
    for path in (
        "RawKernel.kernel",
        "RawModule.get_function",
        "cuda.Event.record",
        "cuda.Event.synchronize",
        "cuda.MemoryPool.free_all_blocks",
        "cuda.MemoryPool.malloc",
        "cuda.MemoryPool.set_limit",
        "cuda.MemoryPool.total_bytes",
        "cuda.Stream.synchronize",
        "cuda.driver.CUDADriverError",
        "cuda.pinned_memory.PinnedMemory",
        "cuda.pinned_memory.PinnedMemoryPointer",
        "cuda.runtime.CUDARuntimeError",
        "cuda.runtime.deviceSynchronize",
        "cuda.runtime.getDevice",
        "cuda.runtime.getDeviceProperties",
        "cuda.runtime.memcpyAsync",
        "cuda.runtime.memcpyDeviceToHost",
        "cuda.runtime.memcpyHostToDevice",
    ):
        assert attrgetter(path)(cupy) is not None, path
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


_ERRORS = {
    "cudaErrorInvalidValue": 0,
    "cudaErrorInvalidConfiguration": 0,
    "cudaErrorNotReady": 0,
    "cudaErrorInvalidResourceHandle": 0,
    "cudaErrorLaunchOutOfResources": 0,
    "cudaErrorHostMemoryAlreadyRegistered": 0,
    "cudaErrorMemoryAllocation": 0,
    "cudaErrorDevicesUnavailable": 1,
    "cudaErrorECCUncorrectable": 1,
    "cudaErrorIllegalAddress": 1,
    "cudaErrorLaunchTimeout": 1,
    "cudaErrorAssert": 1,
    "cudaErrorHardwareStackError": 1,
    "cudaErrorIllegalInstruction": 1,
    "cudaErrorMisalignedAddress": 1,
    "cudaErrorInvalidAddressSpace": 1,
    "cudaErrorInvalidPc": 1,
    "cudaErrorLaunchFailure": 1,
    "cudaErrorUnknown": 1,
}


@needs_cuda_packages
def test_errors_that_last_are_told_from_those_of_one_call() -> None:
    """By name, as CUDA's own library numbers them."""
    error_of = import_module("cupy.cuda").runtime.CUDARuntimeError
    named = {str(error_of(number)).partition(":")[0]: number for number in range(1000)}
    assert {name: int(cupy_device.is_lasting(named[name])) for name in _ERRORS} == _ERRORS


@needs_cuda_packages
def test_an_error_of_cuda_becomes_one_of_three() -> None:
    error_of = import_module("cupy.cuda").runtime.CUDARuntimeError
    for status, lasts, kind, name in (
        (2, False, MemoryError, "cudaErrorMemoryAllocation"),
        (700, True, DeviceLostError, "cudaErrorIllegalAddress"),
        (1, False, DeviceError, "cudaErrorInvalidValue"),
    ):
        made = cupy_device.translated(error_of(status), lasts=lasts)
        assert type(made) is kind
        assert name in str(made)


def test_cubins_are_kept_beside_other_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cupy_device.cubins("") == tmp_path / "gradwire" / "cuda"
    assert cupy_device.cubins(str(tmp_path)) == tmp_path / "cuda"
