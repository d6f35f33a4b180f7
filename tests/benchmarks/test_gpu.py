"""The GPU benchmark in its quick form, on a simulated device."""

import json
import math
from importlib import import_module
from operator import attrgetter

import pytest

from benchmarks.compute.cases import DTYPES
from benchmarks.gpu import report
from benchmarks.gpu.machines import SimulatedMachine
from benchmarks.gpu.run import GpuPace, Run
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator


@pytest.mark.slow
@needs_simulator
@pytest.mark.parametrize("name", ["linear 2-D x2", "cubic 2-D x2", "nearest 3-D x2"])
def test_all_of_it_runs_on_a_simulated_device(name, tmp_path):
    machine = SimulatedMachine()
    run = Run(machine, machine.stream(), GpuPace(rounds=2, warm=1), seconds=300, case=name)
    records = list(run.kernels())
    assert len(records) == 3 * 2
    for record in records:
        assert {"ours", "copy"} <= record.seconds.keys()
        numbers = math.prod(record.src) + math.prod(record.dst)
        assert record.nbytes == DTYPES[record.dtype].itemsize * numbers
    if name == "linear 2-D x2":
        run.from_host_memory()
        assert {cost.way for cost in run.costs} == {"apply", "request"}
    assert not run.broken
    run.write(tmp_path / "gpu.json", {})
    assert report.load(json.loads((tmp_path / "gpu.json").read_text())) == records


CUPY = """
    RawModule.get_function cuda.Device.use cuda.Event.record cuda.Memory
    cuda.get_elapsed_time cuda.nvrtc.getVersion cuda.runtime.deviceSynchronize
    cuda.runtime.driverGetVersion cuda.runtime.getDeviceProperties cuda.runtime.memcpy
    cuda.runtime.memcpyAsync cuda.runtime.memcpyDeviceToDevice cuda.runtime.runtimeGetVersion
"""


@needs_cuda_packages
def test_cupy_has_everything_that_is_called_on_a_device():
    cupy = import_module("cupy")
    for path in CUPY.split():
        assert attrgetter(path)(cupy) is not None, path
