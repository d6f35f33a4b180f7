"""Anonymous memory of server and client while 2 GiB stream through client.evaluate.

    python -m benchmarks memory [--folder DIR] [--json FILE]

The gradient of a bilinear x2 enlargement: diff_dst of (1, 1, 16384, 32768) float32, 2 GiB, is read
from a memory-mapped file and diff_src, 512 MiB, written to another. RssAnon of both processes is
sampled every 20 ms; idle is its level after a first small call. A few rows of the result are
compared with the same call on a part of the tensor.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks import machine
from benchmarks.servers import OURS, rss_anon, started
from gradwire import Client, ops

_DST, _SRC = (1, 1, 16384, 32768), (1, 1, 8192, 16384)
_OPERATOR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_PART = 64


class Peak:
    """Samples RssAnon of some processes until stopped."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self.bytes = dict.fromkeys(pids, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            for name, pid in self._pids.items():
                self.bytes[name] = max(self.bytes[name], rss_anon(pid))


def _fill(path: Path) -> np.memmap[Any, Any]:
    array = np.memmap(path, np.float32, "w+", shape=_DST)
    rng = np.random.default_rng(0)
    for row in range(0, _DST[2], 256):
        array[0, 0, row : row + 256] = rng.normal(size=(256, _DST[3]))
    array.flush()
    del array
    return np.memmap(path, np.float32, "r", shape=_DST)


def _check(client: Client, source: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> bool:
    """Return whether a part of the result equals its own evaluation.

    Rows away from the edges depend on their own part of the tensor only.
    """
    first = _DST[2] // 2
    part = np.ascontiguousarray(source[:, :, first : first + 2 * _PART])
    again = client.evaluate(_OPERATOR, part, output_shape=(1, 1, _PART, _SRC[3]))
    same = result[:, :, first // 2 + 1 : first // 2 + _PART - 1]
    return bool(np.array_equal(again[:, :, 1:-1], same))


def _measure(address: str, server: int, folder: Path) -> dict[str, Any]:
    source = _fill(folder / "diff_dst")
    result = np.memmap(folder / "diff_src", np.float32, "w+", shape=_SRC)
    with Client(address) as client:
        client.evaluate(_OPERATOR, np.ones((1, 1, 8, 8), np.float32), output_shape=(1, 1, 4, 4))
        idle = {"server": rss_anon(server), "client": rss_anon(os.getpid())}
        started = time.perf_counter()
        with Peak(server=server, client=os.getpid()) as peak:
            client.evaluate(_OPERATOR, source, output_shape=_SRC, out=result)
        seconds = time.perf_counter() - started
        right = _check(client, source, result)
    mib = 1 << 20
    return {
        "seconds": round(seconds, 1),
        "megabytes_per_s": round((source.nbytes + result.nbytes) / seconds / 1e6),
        "idle_mib": {name: round(value / mib) for name, value in idle.items()},
        "above_idle_mib": {name: round((peak.bytes[name] - idle[name]) / mib) for name in idle},
        "right": right,
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("memory", __doc__)
    parser.add_argument(
        "--folder", type=Path, help="where to put 2.5 GiB of files for the time of the run"
    )
    arguments = parser.parse_args(argv)
    with (
        started(*OURS, "--wait-for-kernels") as server,
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
    ):
        facts = _measure(server.address, server.pid, Path(folder))
    machine.write(arguments.json, facts)
    print(json.dumps(facts, indent=2))
    return 0
