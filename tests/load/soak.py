"""A server under mixed load for long: what it keeps of memory, threads, files, processes.

    PYTHONPATH=tests python -m load.soak [--duration 1200] [--warm-up 60]

A server with two workers serves every kind of call at once: tiny and medium ones, streams, many in
one stream, calls and streams that their callers cancel or give too little time. What its
processes hold is counted when they rest: after the warm-up, and after the load. Ends with status 1

- if a result was wrong, or a call failed that should not have
- if threads, file descriptors, sockets, shared memory or processes are more than before, still a
  minute after the load. Fewer are none of its business: pools shrink. gRPC's own pool of threads
  may have up to 16 in each process
- if memory grows: see growth(); in less than five minutes, if more than pools stays at rest
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradwire import AsyncClient
from gradwire.loadtest.generator import LoadSettings
from gradwire.loadtest.result import ScenarioResult
from gradwire.loadtest.runner import Runner, Usage
from gradwire.loadtest.scenarios import Flow, Scenario
from support.load import Callers
from support.processes import Command, running_command

# A server that shares its cores with others is full at times, and says so: nothing leaks by that.
_FULL = ("RESOURCE_EXHAUSTED",)
_CANCELLED, _LATE = ("CANCELLED", *_FULL), ("DEADLINE_EXCEEDED", *_FULL)
MIXED = Scenario(
    name="soak",
    summary="every kind of call at once",
    flows=(
        Flow("tiny", "tiny", callers=2, expected=_FULL),
        Flow("medium", "medium", callers=1, expected=_FULL),
        Flow("large", "large", callers=1, expected=_FULL),
        Flow("cancelled streams", "large", "cancelled", 1, within_s=0.3, expected=_CANCELLED),
        Flow("hurried", "work", "hurried", 0, 16.0, burst=8, within_s=0.03, expected=_LATE),
    ),
)

_POOLS_MIB = 64.0
_SHARED = r"^(\w+)-(\w+) ...s .*(?:/dev/shm|/memfd:|/dev/zero)"  # in /proc/PID/maps


def held(pids: set[int]) -> Counter[str]:
    """Count what processes hold: threads, descriptors of each kind, bytes that they share."""
    found = Counter[str](processes=len(pids))
    for pid in pids:
        proc = Path(f"/proc/{pid}")
        threads = Counter(path.read_text().strip() for path in proc.glob("task/*/comm"))
        # It has some more or fewer as load comes and goes.
        found["threads of gRPC's pool beyond 16"] += max(0, threads.pop("event_engine", 0) - 16)
        found["threads"] += threads.total()
        found.update(_kind(descriptor) for descriptor in (proc / "fd").iterdir())
        ranges = re.findall(_SHARED, (proc / "maps").read_text(), re.MULTILINE)
        found["shared bytes"] += sum(int(stop, 16) - int(start, 16) for start, stop in ranges)
    return found


def _kind(descriptor: Path) -> str:
    try:
        target = str(descriptor.readlink())
    except FileNotFoundError:
        return "gone"
    if target.startswith(("/dev/shm", "/memfd:")):  # noqa: S108 - looked at only
        return "shared memory"
    return target.partition(":")[0] if ":" in target else "file"


def anonymous(pids: set[int]) -> int:
    """Return the memory of processes that is no file of a disk, in bytes."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", "".join(texts), re.MULTILINE)
    return 1024 * sum(map(int, found))


def family(root: int) -> set[int]:
    """Return a process and those that descend from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # Processes end while one looks.
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def growth(seconds: Sequence[float], memory: Sequence[float]) -> tuple[float, float]:
    """Return by how much memory grew over the run, and by how much it may seem to.

    The growth is that of the line fitted by least squares to the means of twenty parts of the run;
    three standard errors of it are noise. Where that is little, some MiB are let pass: grpc starts
    threads amid the run, and for each the C library keeps memory that was freed.
    """
    time_s, size = (
        [part.mean() for part in np.array_split(each, 20)] for each in (seconds, memory)
    )
    (slope, _), covariance = np.polyfit(time_s, size, 1, cov=True)
    span, error = seconds[-1] - seconds[0], float(np.sqrt(covariance[0, 0]))
    return float(slope) * span, max(3 * error * span, _POOLS_MIB)


def _load(command: Command, duration_s: float, warm_up_s: float) -> tuple[ScenarioResult, Any]:
    """Put the server under load; return the result, and what evaluate_many saw beside it."""
    options: dict[str, Any] = {
        "show": lambda _: None,
        # Memory that is no file of a disk; processor time has no part in it.
        "probe": lambda: Usage(0.0, anonymous(family(command.pid)), 1),
    }
    connect = partial(AsyncClient, command.address)
    with Callers(command.address, "many") as many, Runner(connect, **options) as runner:
        result = runner.run(MIXED, LoadSettings(duration_s, warm_up_s, timeout_s=30.0))
    return result, many.seen


def run(folder: Path, *, duration_s: float, warm_up_s: float) -> dict[str, Any]:
    """Run it all; return the facts, `failed` among them."""
    flags = ("--workers", "2", "--http-port", "127.0.0.1:0")
    with running_command(*flags, log=folder / "log") as command:
        command.wait_for_log(" worker serves ", times=2)
        _load(command, warm_up_s, 0.0)
        time.sleep(2)
        pids = family(command.pid)
        before, memory = held(pids), anonymous(pids)
        result, many = _load(command, duration_s, min(10.0, duration_s / 6))
        until = time.monotonic() + 60.0
        time.sleep(2)
        while (after := held(family(command.pid))) - before and time.monotonic() < until:
            time.sleep(1)
        left = (anonymous(family(command.pid)) - memory) / (1 << 20)
    failed = [f"{count} more of {name}" for name, count in (after - before).items()]
    if many["wrong"] or any(not text.startswith("OverloadedError") for text in many["lost"]):
        failed.append(f"many in one stream: {many}")
    used = [one.rss_mib for one in result.server]
    grown = noise = 0.0
    # In the first minutes pools fill; of shorter runs only what they leave at rest tells.
    if duration_s >= 300.0:
        grown, noise = growth([one.second for one in result.server], used)
    if grown > noise:
        failed.append(f"memory grew by {grown:.1f} MiB; {noise:.1f} would be noise")
    if left > _POOLS_MIB:
        failed.append(f"at rest {left:.1f} MiB of memory more; {_POOLS_MIB} may be pools")
    ends = [(flow.name, one) for flow in result.flows for one in flow.outcomes if not one.expected]
    if ends:
        failed.append(f"calls failed, or were wrong: {ends}")
    calls = {flow.name: flow.sent for flow in result.flows} | {"many": many["calls"]}
    memory_mib = {"grown": round(grown, 2), "noise": round(noise, 2), "left": round(left, 2)}
    return {
        "duration_s": duration_s,
        "calls": calls,
        "memory_mib": memory_mib,
        "before": before,
        "after": after,
        "failed": failed,
    }


if __name__ == "__main__":
    PARSER = argparse.ArgumentParser()
    PARSER.add_argument("--duration", type=float, default=1200.0)
    PARSER.add_argument("--warm-up", type=float, default=60.0)
    OPTIONS = PARSER.parse_args()
    with tempfile.TemporaryDirectory() as FOLDER:
        REPORT = run(Path(FOLDER), duration_s=OPTIONS.duration, warm_up_s=OPTIONS.warm_up)
    sys.stdout.write(json.dumps(REPORT, indent=2) + "\n")
    sys.exit("\n".join(REPORT["failed"]) or 0)
