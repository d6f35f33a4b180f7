"""Samples of calls by perf_analyzer, the load generator of Triton's wheel, over the socket.

The program is that of the variable PERF_ANALYZER, or the one in the environment of tritonclient; it
needs libb64 and libcudart.so.12, and asks for memory without end where nothing limits it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import MissingPeerError
from benchmarks.peers.h2load import children_cpu_s
from benchmarks.peers.loops import CallMeter, CallSample
from benchmarks.servers import Server

_MOST_KIB: Final = 4 << 20
_WINDOW_MS: Final = 2000


def program(client: Path) -> Path:
    """Return the program; raise MissingPeerError where it does not start."""
    found = Path(os.environ.get("PERF_ANALYZER", client.parent / "perf_analyzer"))
    done = _run([str(found), "--help"])
    if done.returncode in {126, 127}:
        raise MissingPeerError(f"{found}: {(done.stderr or 'it does not start').strip()}")
    return found


def sampled(
    found: Path, server: Server, model: str, *, in_flight: int, options: Sequence[str]
) -> CallSample:
    """Call a model with so many requests in flight, for one window."""
    meter = CallMeter(server.pid, children_cpu_s)
    done = _run(
        [
            *(str(found), "-m", model, "-u", server.address, "-i", "grpc", *options),
            *(
                "--concurrency-range",
                str(in_flight),
                "-p",
                str(_WINDOW_MS),
                "-r",
                "10",
                "-s",
                "10000",
            ),
        ]
    )
    found_rate = re.search(r"throughput: ([\d.]+) infer/sec", done.stdout)
    calls = re.search(r"Request count: (\d+)", done.stdout)
    middle, high = (
        re.search(rf"p{part} latency: (\d+) usec", done.stdout) for part in ("50", "99")
    )
    if done.returncode or not (found_rate and calls and middle and high):
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise MissingPeerError(f"perf_analyzer: {lines[-1]}")
    # Only the percentiles are known: that many latencies have just these.
    latencies = [int(middle[1]) / 1e6] * 98 + [int(high[1]) / 1e6] * 2
    return meter.sample(latencies, calls=int(calls[1]), rate=float(found_rate[1]))


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    limited = ["bash", "-c", f'ulimit -v {_MOST_KIB}; exec "$@"', "bash", *arguments]
    return subprocess.run(limited, capture_output=True, text=True, check=False)
