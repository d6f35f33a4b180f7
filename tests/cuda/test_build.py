"""From plans to launches of the CUDA kernels, and those through NVRTC, without a device."""

import json
import math
import pwd
import re
import struct
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_server.backends import cache_files, compute_dtype
from gradwire_server.backends.cuda import build, cupy_device, launches, programs
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.backends.cuda.programs import Buffer, X, Y, every_kernel
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import BandedMap, Plan
from support.kernels import cuda_device, cuda_programs
from support.kernels import kernel_maps as maps
from support.kernels.cuda_table import needs_cuda_packages
from support.oracles import oracles

# What would change bits or their order: fused products, atomics, denormal numbers set to zero.
FORBIDDEN = re.compile(r"\b(fma|mad\.\S*f(?:16|32|64)|atom|red)\b|\.ftz\b|\.sat\b")


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


@needs_cuda_packages
def test_what_was_compiled_is_found_again(tmp_path):
    kernels = ["fill_bands<unsigned int>"]
    first = build.cubin(kernels, 90, tmp_path)
    folder = tmp_path / build.version()
    (kept,) = folder.iterdir()
    written = kept.stat().st_mtime_ns
    assert build.cubin(kernels, 90, tmp_path) == first
    assert kept.stat().st_mtime_ns == written
    build.cubin(kernels, 80, tmp_path)
    build.cubin(["fill_bands<unsigned short>"], 90, tmp_path)
    # Nothing else lies there: files are written aside and moved.
    assert len(list(folder.iterdir())) == 3
    # Readers of ELF files, the driver among them, refuse a file that ends before its last table.
    (table,) = struct.unpack_from("<Q", first.code, 32)
    size, count = struct.unpack_from("<2H", first.code, 54)
    assert table + size * count <= len(first.code)


CALLED = """
    RawKernel.kernel RawModule.get_function cuda.Device.use cuda.Event.record
    cuda.Event.synchronize cuda.Memory cuda.MemoryPool.free_all_blocks cuda.MemoryPool.malloc
    cuda.MemoryPool.set_limit cuda.MemoryPool.total_bytes cuda.driver.CUDADriverError
    cuda.get_elapsed_time cuda.nvrtc.getVersion cuda.pinned_memory.PinnedMemory
    cuda.pinned_memory.PinnedMemoryPointer cuda.runtime.CUDARuntimeError
    cuda.runtime.deviceSynchronize cuda.runtime.driverGetVersion cuda.runtime.getDevice
    cuda.runtime.getDeviceProperties cuda.runtime.memcpy cuda.runtime.memcpyAsync
    cuda.runtime.memcpyDeviceToDevice cuda.runtime.memcpyDeviceToHost
    cuda.runtime.memcpyHostToDevice cuda.runtime.runtimeGetVersion
"""


@needs_cuda_packages
def test_cupy_has_everything_that_backend_and_benchmarks_call():
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


def test_users_without_a_home_as_in_containers_keep_no_cubins(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    folder = cupy_device.cubins("")
    assert cache_files.read(folder / "one") is None
    with pytest.raises(OSError, match="null"):
        cache_files.write(folder / "one", b"code")
    cache_files.forget_others(folder / "0123456789abcdef")


SINGLE = np.dtype(np.float32)
X2 = maps.linear(64, 128).adjoint()
LENGTHS = st.integers(1, 300) | st.integers(1, 2**33)
FORMATS = [one for dtype in oracles.STORAGE_TYPES for one in programs.formats(dtype)]


@given(
    plan=oracles.plans(),
    formats=st.sampled_from(FORMATS),
    multiprocessors=st.sampled_from([1, 132]),
)
def test_launches_read_what_is_there_and_write_it_all(plan, formats, multiprocessors):
    assume(plan.passes)
    assume(math.prod(plan.output_shape))
    program = cuda_device.program(plan, *formats, multiprocessors=multiprocessors)
    tables, scratch = set(program.tables), set(program.scratch)
    written, used = {X}, set()
    for launch in program.launches:
        _keeps_the_limits(launch)
        result, *others = (one for one in launch.arguments if isinstance(one, Buffer))
        assert result != X
        assert Y not in others
        assert written | tables >= set(others)
        written.add(result)
        used |= {result, *others}
    assert Y in written
    assert used - {X, Y} == tables | scratch
    assert len(scratch) <= 2
    room = plan.largest_intermediate * compute_dtype(formats[0]).itemsize
    assert all(0 < nbytes <= room for nbytes in program.scratch.values())


def _keeps_the_limits(launch):
    x, y, z = launch.grid
    assert 1 <= x <= 2**31 - 1
    assert (y, z) == (1, 1)
    assert math.prod(launch.block) == launches.THREADS
    assert launch.kernel in every_kernel()


@pytest.mark.parametrize("rows", [2**31, 2**33])
def test_a_tensor_of_very_many_rows_is_one_launch_or_refused(rows):
    plan = Plan.build([None, X2, None], (rows, 128, 64))
    try:
        program = cuda_device.program(plan, SINGLE, SINGLE)
    except ValueError as error:
        assert "too many for one launch" in str(error)  # noqa: PT017 - either will do
    else:
        for launch in program.launches:
            _keeps_the_limits(launch)


def test_a_map_beyond_32_bits_is_refused():
    huge = BandedMap(1, 2**31, np.array([2**31 - 1]), np.array([0, 1]), np.array([0.5]))
    with pytest.raises(ValueError, match="2147483648 inputs"):
        cuda_device.program(Plan.build([huge], (2**31,)), SINGLE, SINGLE)


@given(jobs=LENGTHS, per_block=st.sampled_from([1, 8, 16, 256]))
def test_a_grid_holds_every_job_and_no_idle_block(jobs, per_block):
    try:
        x, y, z = launches.blocks(jobs, per_block=per_block)
    except ValueError:
        # Threads must be able to number jobs in 32 bits, also those of the last block.
        assert jobs > 2**32 - 256 or jobs > per_block * (2**31 - 1)
        return
    assert (y, z) == (1, 1)
    assert 1 <= x <= 2**31 - 1
    assert (x - 1) * per_block < jobs <= x * per_block
    assert x * per_block <= 2**32


def test_more_channels_than_32_bits_count_take_one_axis_at_a_time():
    small = maps.linear(2, 4).adjoint()
    plan = Plan.build([small, small, None], (4, 4, 2**31 + 16))
    program = cuda_device.program(plan, SINGLE, SINGLE)
    assert [one.kernel for one in program.launches] == ["axis_pass<float, float, 4>"] * 2
