"""What of a real device can be had without one: what is missing is named."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from cuda_here import needs_cuda_packages
from gradwire_server.backends.cupy_cuda import cupy_device


def _without_cupy(program: str) -> str:
    code = f"import sys\nsys.modules['cupy'] = None\n{program}"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_backend_itself_needs_no_cupy() -> None:
    assert _without_cupy(
        "from gradwire_server.backends.cupy_cuda import backend, cupy_device\nprint('imported')"
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
        "cuda.Device",
        "cuda.Memory",
        "cuda.Stream",
        "cuda.driver.CUDADriverError",
        "cuda.pinned_memory.PinnedMemory",
        "cuda.pinned_memory.PinnedMemoryPointer",
        "cuda.runtime.CUDARuntimeError",
        "cuda.runtime.getDeviceProperties",
        "cuda.runtime.memcpyAsync",
        "cuda.runtime.memcpyDeviceToHost",
        "cuda.runtime.memcpyHostToDevice",
    ):
        assert attrgetter(path)(cupy) is not None, path


def test_cubins_are_kept_beside_other_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cupy_device.cubins("") == tmp_path / "gradwire" / "cuda"
    assert cupy_device.cubins(str(tmp_path)) == tmp_path / "cuda"
