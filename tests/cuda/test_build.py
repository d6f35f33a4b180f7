"""The CUDA kernels through NVRTC, and of a real device what can be had without one."""

import json
import pwd
import re
import struct
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gradwire_server.backends import cache_files
from gradwire_server.backends.cuda import build, cupy_device
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.errors import DeviceLostError
from support.kernels import cuda_programs
from support.kernels.cuda_backends import needs_cuda_packages

# What would change bits or their order: fused products, atomics, denormal numbers set to zero.
FORBIDDEN = re.compile(r"\b(fma|mad\.\S*f(?:16|32|64)|atom|red)\b|\.ftz\b|\.sat\b")

SMALLEST = ["fill_bands<unsigned int>"]


@needs_cuda_packages
@pytest.mark.parametrize("architecture", cuda_programs.ARCHITECTURES)
def test_every_kernel_compiles_without_spills_and_within_its_registers(architecture):
    for one in cuda_programs.built(architecture):
        assert max(map(int, re.findall(r"(\d+) bytes smem", one.log)), default=0) <= 48 << 10
    taken = cuda_programs.registers(architecture)
    budget = json.loads(cuda_programs.BUDGET.read_text())
    assert taken.keys() == budget.keys()
    beyond = {name: count for name, count in taken.items() if count > budget[name]}
    assert not beyond, f"tests/support/kernels/cuda_programs.py writes the budget anew: {beyond}"


@needs_cuda_packages
@pytest.mark.parametrize("architecture", [90, 120])
def test_compiled_kernels_fuse_nothing_add_in_order_and_keep_denormals(architecture):
    for one in cuda_programs.built(architecture):
        assert all(name in one.ptx for name in one.lowered.values())
        found = FORBIDDEN.search(one.ptx)
        assert found is None, f"{min(one.lowered)}: {found and found.group()}"


def test_what_must_not_be_in_a_kernel_would_be_found():
    for line in (
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
        "mad.rn.f64 %fd1, %fd2, %fd3, %fd4;",
        "atom.global.add.f32 %f1, [%rd1], %f2;",
        "red.global.add.f32 [%rd1], %f1;",
        "add.ftz.f32 %f1, %f2, %f3;",
    ):
        assert FORBIDDEN.search(line)
    assert not FORBIDDEN.search("mad.lo.s32 %r1, %r2, %r3, %r4; add.rn.f32 %f1, %f2, %f3;")


@needs_cuda_packages
def test_what_was_compiled_is_found_again(tmp_path):
    first = build.cubin(SMALLEST, 90, tmp_path)
    folder = tmp_path / build.version()
    (kept,) = folder.iterdir()
    written = kept.stat().st_mtime_ns
    assert build.cubin(SMALLEST, 90, tmp_path) == first
    assert kept.stat().st_mtime_ns == written
    build.cubin(SMALLEST, 80, tmp_path)
    build.cubin(["fill_bands<unsigned short>"], 90, tmp_path)
    # Nothing else lies there: files are written aside and moved.
    assert len(list(folder.iterdir())) == 3
    # Readers of ELF files, the driver among them, refuse a file that ends before its last table.
    (tmp_path / "file").touch()
    for code in (first.code, build.cubin(SMALLEST, 90, tmp_path / "file").code):
        assert code.startswith(b"\x7fELF")
        (table,) = struct.unpack_from("<Q", code, 32)
        size, count = struct.unpack_from("<2H", code, 54)
        assert table + size * count <= len(code)


@needs_cuda_packages
def test_what_does_not_compile_is_said_with_the_compilers_words(tmp_path):
    with pytest.raises(build.BuildError, match="undefined_type"):
        build.cubin(["fill_bands<undefined_type>"], 90, tmp_path)
    assert not list(tmp_path.iterdir())


def test_both_releases_of_cupy_at_once_are_refused(tmp_path, monkeypatch):
    for name in ("cupy-cuda12x", "cupy-cuda13x"):
        folder = tmp_path / f"{name.replace('-', '_')}-14.2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="cupy-cuda12x and cupy-cuda13x are both installed"):
        build.check()


CALLED = """
    RawKernel.kernel RawModule.get_function cuda.Event.record cuda.Event.synchronize
    cuda.MemoryPool.free_all_blocks cuda.MemoryPool.malloc cuda.MemoryPool.set_limit
    cuda.MemoryPool.total_bytes cuda.driver.CUDADriverError cuda.pinned_memory.PinnedMemory
    cuda.pinned_memory.PinnedMemoryPointer cuda.runtime.CUDARuntimeError
    cuda.runtime.deviceSynchronize cuda.runtime.getDevice cuda.runtime.getDeviceProperties
    cuda.runtime.memcpyAsync cuda.runtime.memcpyDeviceToHost cuda.runtime.memcpyHostToDevice
"""


@needs_cuda_packages
def test_cupy_has_everything_that_is_called_on_a_device():
    cupy = import_module("cupy")
    for path in CALLED.split():
        assert attrgetter(path)(cupy) is not None, path
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


ERRORS = {
    DeviceError: "InvalidValue InvalidConfiguration NotReady InvalidResourceHandle "
    "LaunchOutOfResources HostMemoryAlreadyRegistered",
    MemoryError: "MemoryAllocation",
    DeviceLostError: "DevicesUnavailable ECCUncorrectable IllegalAddress LaunchTimeout Assert "
    "HardwareStackError IllegalInstruction MisalignedAddress InvalidAddressSpace InvalidPc "
    "LaunchFailure Unknown",
}


@needs_cuda_packages
@pytest.mark.parametrize("fails", [False, True])
def test_errors_that_last_are_told_from_those_of_one_call(fails):
    """By name, as CUDA's own library numbers them."""
    error_of = import_module("cupy.cuda").runtime.CUDARuntimeError

    def synchronize():
        if fails:
            raise error_of(1)

    translating = cupy_device.Translating(
        SimpleNamespace(deviceSynchronize=synchronize), (error_of,)
    )
    named = {str(error_of(number)).partition(":")[0]: number for number in range(1000)}
    for kind, names in ERRORS.items():
        for name in names.split():
            with pytest.raises(DeviceLostError if fails else kind, match=name), translating:
                raise error_of(named[f"cudaError{name}"])


def test_cubins_are_kept_beside_other_compiled_code_or_nowhere(tmp_path, monkeypatch):
    """Users whose numbers are given to containers have no home: nothing can be kept then."""
    assert cupy_device.cubins(str(tmp_path)) == tmp_path / "cuda"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cupy_device.cubins("") == tmp_path / "gradwire" / "cuda"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cupy_device.cubins("") == tmp_path / ".cache" / "gradwire" / "cuda"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    folder = cupy_device.cubins("")
    assert cache_files.read(folder / "one") is None
    with pytest.raises(OSError, match="null"):
        cache_files.write(folder / "one", b"code")
    cache_files.forget_others(folder / "0123456789abcdef")
