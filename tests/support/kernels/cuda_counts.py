"""What the CUDA kernels do for each result, counted, and a model of what bounds their time.

    PYTHONPATH=tests python -m support.kernels.cuda_counts

prints the table of docs/cuda.md. It takes no GPU: NVRTC's PTX runs on the CPU.
The model knows nothing of latencies, of caches, or of what PTX becomes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudasim.module import REVERSE
from gradwire_server.backends.cuda import dispatch
from gradwire_server.plans import Plan
from support.kernels import cuda_programs
from support.kernels import kernel_maps as maps
from support.kernels.cuda_programs import SimulatedCuda
from support.kernels.kernel_cases import Case, Formats
from support.oracles import oracles

# One H200: multiprocessors, at a clock assumed under load; each issues 4 instructions of
# warps and serves 4 sectors of its first-level cache, or a request to shared memory, in a cycle.
_MULTIPROCESSORS, _CLOCK_HZ = 132, 1.755e9
_ISSUED_PER_CYCLE, _WARP, _SECTORS_PER_CYCLE = 4, 32, 4
# Assumed of a copy on it: nine tenths of the 4.8 TB/s of its data sheet.
_MEMORY_BYTES_PER_S = 4.3e12

_FLOAT32, _FLOAT16 = oracles.STORAGE_TYPES[:2]


@dataclass(frozen=True, slots=True)
class Work:
    """What is done for one result, on average.

    instructions  of PTX
    accesses      cycles in which the first-level cache or shared memory is read or written
    memory_bytes  of distinct sectors read and written: what must go to and from the memory
    """

    instructions: float
    accesses: float
    memory_bytes: float

    @property
    def issue(self) -> float:
        """Time to issue the instructions, of the time that memory takes."""
        per_s = _MULTIPROCESSORS * _CLOCK_HZ * _ISSUED_PER_CYCLE * _WARP
        return self.instructions / per_s / self._memory_s

    @property
    def load_store(self) -> float:
        """Time of the accesses, of the time that memory takes."""
        return self.accesses / (_MULTIPROCESSORS * _CLOCK_HZ) / self._memory_s

    @property
    def _memory_s(self) -> float:
        return self.memory_bytes / _MEMORY_BYTES_PER_S


def work(case: Case, formats: Formats) -> Work:
    arriving, leaving = formats
    program = dispatch.program(case.plan, arriving, leaving, multiprocessors=0)
    kernels = frozenset(launch.kernel for launch in program.launches)
    module = cuda_programs.ptx(90, kernels, counting=True)
    module.reset_counts()
    x = np.zeros(case.plan.input_shape, arriving)
    y = np.empty(case.plan.output_shape, leaving)
    # Backwards, buffers begin with a page, as they do with a line on a device.
    SimulatedCuda(module, order=REVERSE).run(program, x, y)
    counts, results = module.counts(), math.prod(case.plan.output_shape)
    accesses = counts.shared.requests + sum(
        max(one.requests, one.sectors / _SECTORS_PER_CYCLE) for one in (counts.loads, counts.stores)
    )
    return Work(
        counts.instructions / results,
        accesses / results,
        (counts.loaded + counts.stored) / results,
    )


def rows() -> Iterator[tuple[Case, Formats]]:
    """Yield gradients of upsampling, of images large enough that edges do not matter."""
    linear, cubic, nearest = maps.linear, maps.cubic, maps.nearest
    sides = {
        "bilinear x2, NCX": (linear(128, 256), linear(128, 256), 1),
        "bilinear x2, NCX, odd width": (linear(128, 256), linear(127, 254), 1),
        "bilinear x2.3, NCX": (linear(100, 230), linear(100, 230), 1),
        "bilinear x4, NCX": (linear(64, 256), linear(64, 256), 1),
        "bicubic x2, NCX": (cubic(128, 256), cubic(128, 256), 1),
        "nearest x2, NCX": (nearest(128, 256), nearest(128, 256), 1),
        "bilinear x2, NXC of 64": (linear(64, 128), linear(64, 128), 64),
        "bilinear x2, NXC of 3": (linear(64, 128), linear(128, 256), 3),
        "bicubic x2, NXC of 64": (cubic(64, 128), cubic(64, 128), 64),
        "nearest x2, NXC of 64": (nearest(64, 128), nearest(64, 128), 64),
    }
    for name, (high, wide, channels) in sides.items():
        moving = [None, high.adjoint(), wide.adjoint(), None]
        plan = Plan.build(moving, (4 if channels == 1 else 1, high.outputs, wide.outputs, channels))
        for dtype in (_FLOAT32, _FLOAT16):
            yield Case(name, plan), (dtype, dtype)


def table() -> str:
    lines = [
        "| gradient of | type | kernels | instructions | memory | issue | load/store |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for case, formats in rows():
        found = work(case, formats)
        program = dispatch.program(case.plan, *formats, multiprocessors=0)
        names = ", ".join(launch.kernel.source.removesuffix(".cu") for launch in program.launches)
        lines.append(
            f"| {case.name} | {formats[0]} | {names} | {found.instructions:.0f} | "
            f"{found.memory_bytes:.1f} B | {found.issue:.2f} | {found.load_store:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201 - what it is for
