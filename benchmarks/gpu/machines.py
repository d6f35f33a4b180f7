"""Machines of the GPU benchmark: with a device, or simulating one.

The simulated one runs the same code on tiny tensors, so that a machine without a device shows that
the benchmark runs. It needs g++.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from benchmarks.compute.cases import Array, Case
from benchmarks.compute.native import UnavailableError
from benchmarks.gpu import cases, costs
from benchmarks.gpu.cases import GpuRow
from benchmarks.gpu.costs import Cost, CostPace
from benchmarks.gpu.streams import CudaStream, DeviceStream, SimulatedStream
from gradwire_server.backends import Backend, NumpyCpu, choose
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda

_GPU, _CPUS = "cuda", ("numba_cpu", "numpy_cpu")
# Room for the largest request in a slot, and for other requests.
_MEMORY_BYTES = 4 << 30


class Machine(Protocol):
    """Machine on which the benchmark runs.

    missing  contestants that cannot run here, and why
    """

    missing: dict[str, str]

    def stream(self) -> DeviceStream:
        """Return the device's stream.

        Raises ImportError with the reason if there is none.
        """
        ...

    def rows(self) -> list[GpuRow]:
        """Return the rows to measure on the device."""
        ...

    def costs(self) -> Iterator[Cost]:
        """Measure from host memory to host memory, size by size."""
        ...


@dataclass
class RealMachine:
    """The first device that CUDA_VISIBLE_DEVICES leaves.

    nbytes   that a row moves, at least
    quick    measures only the targets' cases, and fewer sizes
    largest  output gradient of a request
    """

    nbytes: int
    quick: bool
    largest: int

    def __post_init__(self) -> None:
        self.missing: dict[str, str] = {}

    def stream(self) -> DeviceStream:
        """Return the device's stream."""
        cupy_device.check()
        return CudaStream(cupy_device.cubins(""))

    def rows(self) -> list[GpuRow]:
        """Return the rows to measure on the device."""
        return cases.rows(nbytes=self.nbytes, quick=self.quick)

    def costs(self) -> Iterator[Cost]:
        """Measure from host memory to host memory, size by size."""
        backends = dict(self._chosen())
        pace = CostPace(rounds=7, budget_s=1.0) if self.quick else CostPace()
        some = list(costs.sizes(largest=self.largest))
        for case in some:
            yield costs.applied(backends, case, pace)
        yield from self._requested(list(backends), some, pace)

    def _chosen(self) -> Iterator[tuple[str, Backend]]:
        """Yield the GPU's backend and the best CPU backend."""
        for name in (_GPU, *_CPUS):
            try:
                backend, _ = choose(
                    name,
                    threads=len(os.sched_getaffinity(0)),
                    cuda_memory_bytes=_MEMORY_BYTES,
                )
                backend.warm_up()
            except (ImportError, ValueError, RuntimeError) as error:
                self.missing[name] = str(error)
                continue
            if isinstance(backend, Cuda):
                backend.cpu_work = 0  # the size from which the device pays is to be found
            yield name, backend
            if name != _GPU:
                return

    def _requested(self, names: list[str], some: list[Case], pace: CostPace) -> Iterator[Cost]:
        try:
            requests: Any = import_module("benchmarks.gpu.requests")
        except ImportError as error:
            self.missing["requests"] = f"{error}; SDK and server need it"
            return
        with ExitStack() as stack:
            evaluate = dict[str, Callable[[Array, Array], object]]()
            for name in names:
                try:
                    evaluate[name] = stack.enter_context(requests.process(name))
                except (UnavailableError, IndexError) as error:
                    self.missing[f"requests of {name}"] = str(error) or "the server did not start"
            for case in some if evaluate else []:
                yield costs.requested(evaluate, case, pace)


class SimulatedMachine:
    """A device simulated on the CPU.

    All rows are tiny, and times mean nothing.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        simulated: Any = import_module("support.kernels.cuda_device")
        self._module = simulated.compiled()
        self._device = partial(simulated.SimulatedDevice, self._module)

    def stream(self) -> DeviceStream:
        """Return its stream."""
        return SimulatedStream(self._module)

    def rows(self) -> list[GpuRow]:
        """Return all rows, each small."""
        return cases.tiny_rows()

    def costs(self) -> Iterator[Cost]:
        """Measure two sizes from host memory to host memory."""
        backends: dict[str, Backend] = {
            _GPU: Cuda(self._device(), memory_bytes=64 << 20),
            NumpyCpu.name: NumpyCpu(),
        }
        pace = CostPace(rounds=3, budget_s=0.1)
        some = list(costs.sizes(smallest=1 << 12, largest=1 << 14))
        for case in some:
            yield costs.applied(backends, case, pace)
        try:
            requests: Any = import_module("benchmarks.gpu.requests")
        except ImportError as error:
            self.missing["requests"] = f"{error}; SDK and server need it"
            return
        with ExitStack() as stack:
            entered: dict[str, AbstractContextManager[Any]] = {
                name: requests.thread(one) for name, one in backends.items()
            }
            evaluate = {name: stack.enter_context(one) for name, one in entered.items()}
            for case in some:
                yield costs.requested(evaluate, case, pace)
