"""The CUDA kernels as NVRTC compiles them.

PYTHONPATH=tests python -m support.kernels.cuda_programs

writes the registers of each into tests/data/cuda_registers.json.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from cudasim.module import Module
from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.programs import every_kernel, source
from ptxsim.module import translated

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
_REGISTERS = r"Compiling entry function '(\w+)'.*?Used (\d+) registers"
BUDGET = Path(__file__).parents[2] / "data" / "cuda_registers.json"


class Built(NamedTuple):
    """Kernels of one file, compiled to machine code.

    lowered  name in the code by name expression
    ptx      what NVRTC made on the way
    log      the compiler's report: registers, shared memory, spills
    """

    lowered: dict[str, str]
    ptx: str
    log: str


@cache
def built(architecture: int) -> list[Built]:
    """Compile every kernel to machine code."""
    nvrtc: Any = import_module("cupy.cuda").nvrtc

    def compile_(program: Any, options: list[str]) -> None:
        nvrtc.compileProgram(program, [*options, "--ptxas-options=-v"])

    def report(program: Any) -> bytes:
        nvrtc.getCUBIN(program)
        log: str = nvrtc.getProgramLog(program)
        return bytes(nvrtc.getPTX(program)) + b"\0" + log.encode()

    def compiled(kernels: list[str]) -> Built:
        made = build.compiled(kernels, f"sm_{architecture}")
        ptx, _, log = made.code.partition(b"\0")
        return Built(made.lowered, ptx.decode(), log.decode())

    files = [list(kernels) for _, kernels in groupby(every_kernel(), source)]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        changed = {"compileProgram": compile_, "getCUBIN": report}
        reporting = SimpleNamespace(**{**vars(nvrtc), **changed})
        patch.setattr(build, "_nvrtc", lambda: reporting)
        return list(pool.map(compiled, files))


def registers(architecture: int) -> dict[str, int]:
    """Return the registers that a thread of each kernel takes; assert that none spills."""
    found = dict[str, int]()
    for one in built(architecture):
        assert not re.search(r"[1-9]\d* bytes spill", one.log), one.log
        counts = dict(re.findall(_REGISTERS, one.log, re.DOTALL))
        found |= {name: int(counts[lowered]) for name, lowered in one.lowered.items()}
    return found


@cache
def ptx(architecture: int, some: frozenset[str] | None = None) -> Module:
    """Compile kernels, all of them unless some are named, with NVRTC and then with g++.

    architecture  compute capability: 90 is 9.0
    """
    named = some or frozenset(every_kernel())
    return translated(
        (one.ptx, {name: mangled for name, mangled in one.lowered.items() if name in named})
        for one in built(architecture)
    )


if __name__ == "__main__":
    found = [registers(one) for one in ARCHITECTURES]
    most = {name: max(one[name] for one in found) for name in found[0]}
    BUDGET.write_text(json.dumps(most, indent=1, sort_keys=True) + "\n", encoding="utf-8")
