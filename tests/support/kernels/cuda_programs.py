"""The programs of the CUDA backend without a GPU, one by one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy.typing as npt

from cudasim.module import FORWARD, Module
from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Program, every_kernel
from gradwire_server.plans import BandedMap, Plan
from ptxsim.module import PtxModule, translated
from support.kernels import cuda_compiled

Array = npt.NDArray[Any]


@cache
def ptx(architecture: int, some: frozenset[Kernel] | None = None) -> PtxModule:
    """Compile kernels, all of them unless some are named, with NVRTC and then with g++.

    architecture  compute capability: 90 is 9.0
    """
    named = {kernel.expression for kernel in some or every_kernel()}
    there = [
        (text, {name: mangled for name, mangled in lowered.items() if name in named})
        for text, lowered in cuda_compiled.texts(architecture)
    ]
    return translated(there)


class SimulatedCuda:
    """Runs programs launch by launch. What x, y, tables and scratch lie next to is guarded.

    order            in which the threads of a block run, as `cudasim.module` has it
    multiprocessors  that programs are made for; the fewer, the more each thread does
    """

    name = "cuda_simulated"
    splits_work = False
    may_wait = False

    def __init__(
        self,
        module: Module,
        *,
        order: int = FORWARD,
        multiprocessors: int = dispatch.MULTIPROCESSORS,
    ) -> None:
        self._module, self._order, self._multiprocessors = module, order, multiprocessors

    def warm_up(self) -> None: ...

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        if not y.size:
            return
        made = partial(dispatch.program, multiprocessors=self._multiprocessors)
        self.run(made(plan, x.dtype, y.dtype), x, y)

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        program = dispatch.accumulation(
            bands,
            x.shape,
            x.dtype,
            axis=axis,
            carried=carried,
            multiprocessors=self._multiprocessors,
        )
        self.run(program, x, y, carried=carried > 0)

    def run(self, program: Program, x: Array, y: Array, *, carried: bool = False) -> None:
        """Run a program.

        x        what it reads, contiguous or not
        y        what it writes, all of it
        carried  whether it reads y as well; otherwise y is NaN before
        """
        holding = partial(self._module.holding, order=self._order)
        fresh = partial(self._module.buffer, order=self._order)
        buffers = {Buffer("x"): holding(x), Buffer("y"): fresh(y.nbytes)}
        for index, table in enumerate(program.tables):
            buffers[Buffer("table", index)] = holding(table)
        for index, nbytes in enumerate(program.scratch):
            buffers[Buffer("scratch", index)] = fresh(nbytes)
        addresses = {place: buffer.address for place, buffer in buffers.items()}
        result = buffers[Buffer("y")].view(y.dtype, y.size).reshape(y.shape)
        if carried:
            result[...] = y
        for launch in program.launches:
            self._module.launch(
                launch.kernel.expression,
                launch.grid,
                launch.block,
                launch.resolved(addresses),
                order=self._order,
            )
        y[...] = result
