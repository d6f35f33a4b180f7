"""The CUDA kernels as NVRTC compiles them, for every architecture that is named.

PYTHONPATH=tests python -m support.kernels.cuda_compiled

writes the registers of each into tests/data/cuda_registers.json.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import ChainMap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.programs import every_kernel

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
BUDGET = Path(__file__).parents[2] / "data" / "cuda_registers.json"


@cache
def texts(architecture: int) -> list[tuple[str, dict[str, str]]]:
    return [ptx(*one, architecture) for one in build.by_source(every_kernel()).items()]


def ptx(source: str, expressions: list[str], architecture: int) -> tuple[str, dict[str, str]]:
    made = build.compiled(source, expressions, f"compute_{architecture}")
    return made.code.rstrip(b"\0").decode(), made.lowered


def _registers(log: str) -> dict[str, int]:
    found = re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", log, re.DOTALL)
    return {name: int(count) for name, count in found}


def spills(log: str) -> list[str]:
    return [line for line in log.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]


def registers(architecture: int, cache: Path) -> dict[str, int]:
    """Compile every kernel; return the registers that a thread of each takes, and spills none."""

    def of_file(source: str, expressions: list[str]) -> dict[str, int]:
        cubin = build.cubin(source, expressions, architecture, cache)
        assert not spills(cubin.log), cubin.log
        counts = _registers(cubin.log)
        return {name: counts[lowered] for name, lowered in cubin.lowered.items()}

    grouped = build.by_source(every_kernel())
    with ThreadPoolExecutor() as pool:
        return dict(ChainMap(*pool.map(of_file, grouped.keys(), grouped.values())))


def budget() -> dict[str, int]:
    """Return the most registers that a thread of each kernel may take on any architecture."""
    kept: dict[str, int] = json.loads(BUDGET.read_text(encoding="utf-8"))
    return kept


def write_budget(architectures: Iterable[int]) -> None:
    """Keep what kernels take now, on the architecture where each takes most."""
    with tempfile.TemporaryDirectory() as folder:
        found = [registers(one, Path(folder)) for one in architectures]
    most = {name: max(one[name] for one in found) for name in found[0]}
    BUDGET.write_text(json.dumps(most, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_budget(ARCHITECTURES)
