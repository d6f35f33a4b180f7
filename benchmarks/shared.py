"""Large local evaluations: shared memory, a stream and LocalClient.

A bilinear x2 gradient in float32, NCHW, with two computing threads. In each round every contestant
is called in turn; ratios are of a round's calls to the stream's call.

stream   Client on a unix socket, without shared memory
copied   the same with shared memory, from an ordinary array
placed   the same from an array of client.empty()
local    LocalClient in this process
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import parser, write
from benchmarks.servers import started
from gradwire import Client, ops
from gradwire_server import LocalClient

OPERATOR = ops.TorchUpsampleBackward(mode="bilinear")
THREADS = 2
# MB up; the result has a fourth of it.
SHAPES = {
    "1 MiB": (1, 4, 256, 256),
    "25.7 MB": (8, 64, 112, 112),
    "256 MiB": (1, 64, 1024, 1024),
}


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write the figures."""
    arguments = parser("shared", __doc__)
    arguments.add_argument("--rounds", type=int, default=15)
    given = arguments.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/socket"
        flags = ("--address", address, "--compute-threads", str(THREADS))
        with (
            started("-m", "gradwire_server", *flags, "--max-request-memory-bytes", str(2 << 30)),
            Client(address) as shared,
            Client(address, shared_memory=False) as streamed,
            LocalClient("numba_cpu", threads=THREADS) as local,
        ):
            for name, shape in SHAPES.items():
                ready = shared.empty(shape)
                calls = _calls(ready, stream=streamed, copied=shared, placed=shared, local=local)
                rows += _measured(name, calls, given.rounds)
    for row in rows:
        print(
            f"{row['size']:8} {row['contestant']:7} {row['ms']:8.2f} ms, "
            f"{row['rate_ratio']:5.2f} of the stream's rate"
        )
    write(given.json, {"threads": THREADS, "rows": rows})
    return 0


def _calls(
    ready: NDArray[np.float32], **clients: Client | LocalClient
) -> dict[str, Callable[[], Any]]:
    """Return a call of each contestant on the same gradient."""
    shape = ready.shape
    source = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    ready[...] = source
    result = (*shape[:2], shape[2] // 2, shape[3] // 2)
    return {
        name: partial(
            client.evaluate, OPERATOR, ready if name == "placed" else source, output_shape=result
        )
        for name, client in clients.items()
    }


def _measured(name: str, calls: dict[str, Callable[[], Any]], rounds: int) -> list[dict[str, Any]]:
    if len({call().tobytes() for call in calls.values()}) != 1:
        raise RuntimeError(f"{name}: results differ")
    seconds: dict[str, list[float]] = {contestant: [] for contestant in calls}
    for number in range(rounds):
        for contestant in calls if number % 2 else reversed(calls):
            began = time.perf_counter()
            calls[contestant]()
            seconds[contestant].append(time.perf_counter() - began)
    return [
        {
            "size": name,
            "contestant": contestant,
            "ms": 1e3 * statistics.median(taken),
            "rate_ratio": statistics.median(
                one / other for one, other in zip(seconds["stream"], taken, strict=True)
            ),
        }
        for contestant, taken in seconds.items()
    ]
