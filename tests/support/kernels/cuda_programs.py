"""The CUDA kernels as NVRTC compiles them, and programs of them without a GPU.

PYTHONPATH=tests python -m support.kernels.cuda_programs

writes the registers of each into tests/data/cuda_registers.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy.typing as npt
import pytest

from cudasim.module import FORWARD, Module
from gradwire_server.backends.cuda import build, dispatch
from gradwire_server.backends.cuda.build import Compiled
from gradwire_server.backends.cuda.programs import Buffer, Kernel, X, Y, every_kernel
from gradwire_server.plans import Plan
from ptxsim.module import translated

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
_REGISTERS = r"Compiling entry function '(\w+)'.*?Used (\d+) registers"
BUDGET = Path(__file__).parents[2] / "data" / "cuda_registers.json"

Array = npt.NDArray[Any]


@cache
def built(architecture: int) -> list[tuple[Compiled, str]]:
    """Compile every kernel to machine code; return it with the PTX that NVRTC made on the way."""
    nvrtc: Any = import_module("cupy.cuda").nvrtc

    def both(program: Any) -> bytes:
        return bytes(nvrtc.getPTX(program) + nvrtc.getCUBIN(program))

    keeping = SimpleNamespace(**{**vars(nvrtc), "getCUBIN": both})
    grouped, target = build.by_source(every_kernel()), f"sm_{architecture}"
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(build, "_nvrtc", lambda: keeping)
        made = pool.map(build.compiled, grouped, grouped.values(), [target] * len(grouped))
        return [(one, text_of(one.code.partition(b"\x7fELF")[0])) for one in made]


def text_of(code: bytes) -> str:
    return code.rstrip(b"\0").decode()


def registers(architecture: int) -> dict[str, int]:
    """Return the registers that a thread of each kernel takes; assert that none spills."""
    found = dict[str, int]()
    for one, _ in built(architecture):
        assert not re.search(r"[1-9]\d* bytes spill", one.log), one.log
        counts = dict(re.findall(_REGISTERS, one.log, re.DOTALL))
        found |= {name: int(counts[lowered]) for name, lowered in one.lowered.items()}
    return found


def budget() -> dict[str, int]:
    """Return the most registers that a thread of each kernel may take on any architecture."""
    kept: dict[str, int] = json.loads(BUDGET.read_text(encoding="utf-8"))
    return kept


def write_budget(architectures: Iterable[int]) -> None:
    found = [registers(one) for one in architectures]
    most = {name: max(one[name] for one in found) for name in found[0]}
    BUDGET.write_text(json.dumps(most, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@cache
def ptx(architecture: int, some: frozenset[Kernel] | None = None) -> Module:
    """Compile kernels, all of them unless some are named, with NVRTC and then with g++.

    architecture  compute capability: 90 is 9.0
    """
    named = {kernel.expression for kernel in some or every_kernel()}
    return translated(
        (text, {name: mangled for name, mangled in one.lowered.items() if name in named})
        for one, text in built(architecture)
    )


class SimulatedCuda:
    """Runs programs launch by launch. What x, y, tables and scratch lie next to is guarded.

    order            in which the threads of a block run, as `cudasim.module` has it
    multiprocessors  that programs are made for; the fewer, the more each thread does
    """

    def __init__(self, module: Module, *, order: int = FORWARD, multiprocessors: int = 132) -> None:
        self._module, self._order, self._multiprocessors = module, order, multiprocessors

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Run a plan's program on x, contiguous or not, and write all of y."""
        program = dispatch.program(plan, x.dtype, y.dtype, multiprocessors=self._multiprocessors)
        holding = partial(self._module.holding, order=self._order)
        fresh = partial(self._module.buffer, order=self._order)
        buffers = {X: holding(x), Y: fresh(y.nbytes)}
        buffers |= {Buffer("table", i): holding(one) for i, one in enumerate(program.tables)}
        buffers |= {Buffer("scratch", i): fresh(size) for i, size in enumerate(program.scratch)}
        addresses = {place: buffer.address for place, buffer in buffers.items()}
        for one in program.launches:
            given, name = one.resolved(addresses), one.kernel.expression
            self._module.launch(name, one.grid, one.block, given, order=self._order)
        y[...] = buffers[Y].view(y.dtype, y.size).reshape(y.shape)


if __name__ == "__main__":
    write_budget(ARCHITECTURES)
