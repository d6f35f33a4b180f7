"""Cost of a hop to the thread pool and of small evaluations.

    python -m benchmarks inline

Times are medians in microseconds. A hop is run_in_executor and back on an idle loop; an evaluation
is a bilinear x2 gradient computed in place, without decoding or encoding.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import machine
from gradwire import ops
from gradwire_server.backends import choose
from gradwire_server.engine import EvaluationRequest, Limits, PlanCache, Preparer, TensorSpec

_REPEATS = 300


async def _hop_us() -> float:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(_REPEATS):
            started = time.perf_counter()
            await loop.run_in_executor(pool, int)
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _evaluation_us(size: int) -> tuple[int, float]:
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    dtype = np.dtype(np.float32)
    source = TensorSpec.packed(dtype, (1, 3, 2 * size, 2 * size))
    result = TensorSpec.packed(dtype, (1, 3, size, size))
    preparer = Preparer(Limits(), PlanCache(max_entries=1 << 22))
    request = EvaluationRequest(operator.name, operator, source, result)
    evaluation = preparer.prepare(request)
    backend, _ = choose("auto")
    data = np.ones(source.elements, dtype).view(np.uint8)
    times: list[float] = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        evaluation.run_whole(data, backend)
        times.append(time.perf_counter() - started)
    return evaluation.work, statistics.median(times) * 1e6


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    arguments = machine.parser("inline", __doc__).parse_args(argv)
    evaluations: list[dict[str, Any]] = []
    for size in (2, 4, 8, 16, 32, 64, 128):
        work, cost = _evaluation_us(size)
        evaluations.append({"diff_src": [1, 3, size, size], "work": work, "us": round(cost, 1)})
    facts = {"hop_us": round(asyncio.run(_hop_us()), 1), "evaluations": evaluations}
    machine.write(arguments.json, facts)
    print(json.dumps(facts, indent=2))
    return 0
