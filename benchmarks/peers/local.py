"""PyTorch's local backward beside gradwire's server on a unix socket and LocalClient.

    python -m benchmarks.peers.local ADDRESS PID ROUNDS

Runs in the models' environment, which has PyTorch. All have two threads. `remote` copies the tensor
into shared memory, `placed` finds it there, in an array of client.empty(). Each round takes
the contestants of each case in turn; a sample is the median of calls for a quarter of a second, and
one taken while other processes kept more than a quarter of a core busy is left out. Writes JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Literal

import ml_dtypes
import numpy as np

from benchmarks.peers.processes import busy_s, cpu_s, tree, wait_idle
from benchmarks.peers.rounds import IDLE_LIMIT_S, IDLE_S, OTHERS_LIMIT, ratio
from gradwire import Client, ops
from gradwire_server import LocalClient

_Mode = Literal["bilinear", "bicubic", "trilinear"]

THREADS = 2
_SAMPLE_S = 0.25
_LEAST_CALLS = 3
_SHAPES: dict[_Mode, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bilinear": ((8, 64, 112, 112), (8, 64, 56, 56)),
    "bicubic": ((8, 64, 112, 112), (8, 64, 56, 56)),
    "trilinear": ((2, 16, 32, 80, 80), (2, 16, 16, 40, 40)),
}
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}

torch: Any = import_module("torch")


@dataclass(frozen=True, slots=True)
class LocalCase:
    """One operator in one layout and type, with its contestants.

    Samples are in milliseconds.
    """

    mode: str
    layout: str
    dtype: str
    contestants: dict[str, Callable[[], Any]]
    samples: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])

    def row(self, rounds: int) -> dict[str, Any]:
        """Return median milliseconds, and ratios to PyTorch's rate.

        A ratio above 1 means that the contestant is faster.
        """
        row: dict[str, Any] = {"mode": self.mode, "layout": self.layout, "dtype": self.dtype}
        for name in self.contestants:
            found = [ms for (_, whose), ms in self.samples.items() if whose == name]
            row[f"{name}_ms"] = statistics.median(found) if found else None
        for name in ("remote", "placed", "local"):
            row[f"{name}_ratio"] = ratio(
                (self.samples.get((one, "torch")), self.samples.get((one, name)))
                for one in range(rounds)
            )
        row["samples"] = len(self.samples)
        return row


def _cases(address: str) -> Iterable[LocalCase]:
    remote, local = Client(address), LocalClient(backend="numba_cpu", threads=THREADS)
    for mode, dtype, layout in product(_SHAPES, ("float32", "bfloat16"), ("NCHW", "NHWC")):
        shape, result_shape = _SHAPES[mode]
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        tensor = torch.from_numpy(values).to(getattr(torch, dtype))
        if layout == "NHWC":
            spatial = len(shape) - 2
            last = torch.channels_last if spatial == 2 else torch.channels_last_3d
            tensor = tensor.contiguous(memory_format=last)
        operator = ops.TorchUpsampleBackward(mode=mode)
        source = _array(tensor)
        # Axes in the order of the source's memory.
        order = np.argsort(source.strides, kind="stable")[::-1]
        nested = remote.empty([source.shape[axis] for axis in order], source.dtype)
        placed = nested.transpose(np.argsort(order))
        placed[...] = source
        case = LocalCase(
            mode,
            layout,
            dtype,
            {
                "torch": _pytorch(mode, tensor, result_shape),
                "remote": partial(remote.evaluate, operator, source, output_shape=result_shape),
                "placed": partial(remote.evaluate, operator, placed, output_shape=result_shape),
                "local": partial(local.evaluate, operator, source, output_shape=result_shape),
            },
        )
        _check(case)
        yield case


def _pytorch(mode: str, tensor: Any, result_shape: tuple[int, ...]) -> Callable[[], Any]:
    sizes = (list(tensor.shape[2:]), list(result_shape))
    if mode == "trilinear":
        backward = torch.ops.aten.upsample_trilinear3d_backward
        return partial(backward, tensor, *sizes, False, None, None, None)  # noqa: FBT003 - PyTorch's signature
    backward = getattr(torch.ops.aten, f"upsample_{mode}2d_backward")
    return partial(backward, tensor, *sizes, False, None, None)  # noqa: FBT003 - PyTorch's signature


def _array(tensor: Any) -> Any:
    """Return a tensor's memory as an array with its strides."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _check(case: LocalCase) -> None:
    """Compare the results, which differ where PyTorch rounds in between."""
    torchs = case.contestants["torch"]().to(torch.float32).numpy()
    names = ("remote", "placed", "local")
    remote, placed, local = (np.asarray(case.contestants[name]()) for name in names)
    if not remote.tobytes() == placed.tobytes() == local.tobytes():
        raise RuntimeError(f"{case.mode}: remote and local results differ")
    tolerance = _TOLERANCE[case.dtype]
    np.testing.assert_allclose(remote.astype(np.float32), torchs, rtol=tolerance, atol=tolerance)


def _sample_ms(call: Callable[[], Any], pids: list[int]) -> float | None:
    """Return the median milliseconds of calls for a while.

    None if other processes were busy.
    """
    call()
    times: list[float] = []
    own, started = cpu_s(pids), time.perf_counter()
    machine = busy_s()
    while (before := time.perf_counter()) < started + _SAMPLE_S or len(times) < _LEAST_CALLS:
        call()
        times.append(time.perf_counter() - before)
    seconds = time.perf_counter() - started
    others = (busy_s() - machine - (cpu_s(pids) - own)) / seconds
    return 1e3 * statistics.median(times) if others < OTHERS_LIMIT else None


def main() -> int:
    """Measure, and write the rows."""
    address, pid, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    cases = list(_cases(address))
    pids = [*tree(pid), os.getpid()]
    for one in range(rounds):
        wait_idle(IDLE_S, IDLE_LIMIT_S)
        for case in cases:
            names = list(case.contestants)
            for name in names if one % 2 == 0 else reversed(names):
                if (ms := _sample_ms(case.contestants[name], pids)) is not None:
                    case.samples[one, name] = ms
        sys.stderr.write(f"local: round {one + 1} of {rounds}\n")
    json.dump([case.row(rounds) for case in cases], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
