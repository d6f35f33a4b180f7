"""The CUDA kernels as NVRTC compiles them, and programs of them without a GPU.

PYTHONPATH=tests python -m support.kernels.cuda_programs

writes the registers of each into tests/data/cuda_registers.json.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import ChainMap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from cudasim.module import FORWARD, Module
from gradwire_server.backends.cuda import build, dispatch
from gradwire_server.backends.cuda.programs import Buffer, Kernel, Program, every_kernel
from gradwire_server.plans import BandedMap, Plan
from ptxsim.module import PtxModule, translated

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
_REGISTERS = r"Compiling entry function '(\w+)'.*?Used (\d+) registers"
BUDGET = Path(__file__).parents[2] / "data" / "cuda_registers.json"


@cache
def texts(architecture: int) -> list[tuple[str, dict[str, str]]]:
    return [ptx_text(*one, architecture) for one in build.by_source(every_kernel()).items()]


def ptx_text(source: str, expressions: list[str], architecture: int) -> tuple[str, dict[str, str]]:
    made = build.compiled(source, expressions, f"compute_{architecture}")
    return made.code.rstrip(b"\0").decode(), made.lowered


def registers(architecture: int, cache: Path) -> dict[str, int]:
    """Compile every kernel; return the registers that a thread of each takes, and spills none."""

    def of_file(source: str, expressions: list[str]) -> dict[str, int]:
        cubin = build.cubin(source, expressions, architecture, cache)
        assert not re.search(r"[1-9]\d* bytes spill", cubin.log), cubin.log
        counts = dict(re.findall(_REGISTERS, cubin.log, re.DOTALL))
        return {name: int(counts[lowered]) for name, lowered in cubin.lowered.items()}

    grouped = build.by_source(every_kernel())
    with ThreadPoolExecutor() as pool:
        return dict(ChainMap(*pool.map(of_file, grouped.keys(), grouped.values())))


def budget() -> dict[str, int]:
    """Return the most registers that a thread of each kernel may take on any architecture."""
    kept: dict[str, int] = json.loads(BUDGET.read_text(encoding="utf-8"))
    return kept


def write_budget(architectures: Iterable[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [registers(one, Path(folder)) for one in architectures]
    most = {name: max(one[name] for one in found) for name in found[0]}
    BUDGET.write_text(json.dumps(most, indent=1, sort_keys=True) + "\n", encoding="utf-8")


Array = npt.NDArray[Any]


@cache
def ptx(architecture: int, some: frozenset[Kernel] | None = None) -> PtxModule:
    """Compile kernels, all of them unless some are named, with NVRTC and then with g++.

    architecture  compute capability: 90 is 9.0
    """
    named = {kernel.expression for kernel in some or every_kernel()}
    there = [
        (text, {name: mangled for name, mangled in lowered.items() if name in named})
        for text, lowered in texts(architecture)
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


if __name__ == "__main__":
    write_budget(ARCHITECTURES)
