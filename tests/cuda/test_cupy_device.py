"""What of a real device can be had without one: what is missing is named."""

from __future__ import annotations

import pwd
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from gradwire_server.backends import cache_files
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.errors import DeviceLostError
from support.kernels.cuda_backends import needs_cuda_packages


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
        "cuda.MemoryPool.malloc",
        "cuda.MemoryPool.set_limit",
        "cuda.MemoryPool.total_bytes",
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
    "cudaErrorInvalidValue": DeviceError,
    "cudaErrorInvalidConfiguration": DeviceError,
    "cudaErrorNotReady": DeviceError,
    "cudaErrorInvalidResourceHandle": DeviceError,
    "cudaErrorLaunchOutOfResources": DeviceError,
    "cudaErrorHostMemoryAlreadyRegistered": DeviceError,
    "cudaErrorMemoryAllocation": MemoryError,
    "cudaErrorDevicesUnavailable": DeviceLostError,
    "cudaErrorECCUncorrectable": DeviceLostError,
    "cudaErrorIllegalAddress": DeviceLostError,
    "cudaErrorLaunchTimeout": DeviceLostError,
    "cudaErrorAssert": DeviceLostError,
    "cudaErrorHardwareStackError": DeviceLostError,
    "cudaErrorIllegalInstruction": DeviceLostError,
    "cudaErrorMisalignedAddress": DeviceLostError,
    "cudaErrorInvalidAddressSpace": DeviceLostError,
    "cudaErrorInvalidPc": DeviceLostError,
    "cudaErrorLaunchFailure": DeviceLostError,
    "cudaErrorUnknown": DeviceLostError,
}


@needs_cuda_packages
@pytest.mark.parametrize("fails", [False, True])
def test_errors_that_last_are_told_from_those_of_one_call(fails: bool) -> None:  # noqa: FBT001
    """By name, as CUDA's own library numbers them."""
    error_of = import_module("cupy.cuda").runtime.CUDARuntimeError
    named = {str(error_of(number)).partition(":")[0]: number for number in range(1000)}
    for name, kind in _ERRORS.items():
        expected = DeviceLostError if fails else kind
        made = cupy_device.translated(error_of(named[name]), fails=lambda: fails)
        assert type(made) is expected, name
        assert name in str(made)


def test_cubins_are_kept_beside_other_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cupy_device.cubins("") == tmp_path / "gradwire" / "cuda"
    assert cupy_device.cubins(str(tmp_path)) == tmp_path / "cuda"


def test_a_user_without_a_home_has_a_device_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the numbers of users that containers are given: nothing can be kept then."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    folder = cupy_device.cubins("")
    assert cache_files.read(folder / "one") is None
    with pytest.raises(OSError, match="null"):
        cache_files.write(folder / "one", b"code")
    cache_files.forget_others(folder / "0123456789abcdef")
    assert cupy_device.cubins(str(tmp_path)) == tmp_path / "cuda"
