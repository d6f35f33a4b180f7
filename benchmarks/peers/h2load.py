"""Samples of small unary calls by h2load, a client in C."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import MissingPeerError
from benchmarks.peers.loops import CallMeter, CallSample
from benchmarks.servers import Server

# Seconds left out of rate and latencies, in which connections are new.
_FIRST_S: Final = 0.3


def sampled(
    program: str,
    server: Server,
    path: str,
    *,
    body: Path,
    least_bytes: int,
    in_flight: int,
    seconds: int,
) -> CallSample:
    """Sample calls on connections, one call on each at a time.

    h2load does not check the status of a call, so replies shorter than least_bytes count as
    failures.
    """
    log = body.with_suffix(".log")
    log.unlink(missing_ok=True)
    meter = CallMeter(server.pid, children_cpu_s)
    done = subprocess.run(
        [
            *(program, f"--clients={in_flight}", "--max-concurrent-streams=1"),
            *(f"--log-file={log}", f"--duration={seconds}", f"--data={body}"),
            *("--header=content-type: application/grpc", "--header=te: trailers"),
            f"http://{server.address}{path}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"(\d+) succeeded.*?traffic:.*?\((\d+)\) data", done.stdout, re.DOTALL)
    if match is None or not (calls := int(match[1])):
        raise MissingPeerError(f"h2load: {done.stderr or done.stdout}")
    # start in microseconds, HTTP status, latency in microseconds
    rows = [tuple(map(int, line.split()[:3])) for line in log.read_text("utf-8").splitlines()]
    failed = sum(status != 200 for _, status, _ in rows)
    if failed or int(match[2]) < calls * least_bytes:
        raise MissingPeerError(
            f"{failed} calls failed; {calls} brought {match[2]} bytes, not {least_bytes} each"
        )
    first = min(start for start, _, _ in rows) + 1e6 * _FIRST_S
    last = max(start for start, _, _ in rows)
    latencies = [took / 1e6 for start, _, took in rows if start >= first]
    return meter.sample(latencies, calls=len(rows), rate=1e6 * len(latencies) / (last - first))


def children_cpu_s() -> float:
    """Return the processor time of the programs that this process ran."""
    times = os.times()
    return times.children_user + times.children_system
