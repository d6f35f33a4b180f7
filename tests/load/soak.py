"""A server under mixed load for long: what it keeps of memory, threads, files, processes.

    PYTHONPATH=tests python -m load.soak [--duration 1200] [--warm-up 60] [--json FILE]

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

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine
from gradwire import AsyncClient
from gradwire.loadtest.generator import LoadSettings
from gradwire.loadtest.result import ScenarioResult, failures
from gradwire.loadtest.runner import Runner, Usage
from gradwire.loadtest.scenarios import Flow, Scenario
from load.loading import reported
from support.load import Callers
from support.processes import Command, running_command

# A server that shares its cores with others is full at times, and says so: nothing leaks by that.
_FULL: Final = ("RESOURCE_EXHAUSTED",)
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

_FLAGS: Final = ("--workers", "2", "--http-port", "127.0.0.1:0")
_REST_S: Final = 60.0
_MIB: Final = 1 << 20
# Of the memory in use: what its growth over the run may be where that is less than the noise.
_PART: Final = 0.05
# In the first minutes pools fill; of shorter runs only what they leave at rest tells.
_LEAST_FIT_S: Final = 300.0
_MOST_LEFT_MIB: Final = 64.0
_SHARED = r"^(\w+)-(\w+) ...s .*(?:/dev/shm|/memfd:|/dev/zero)"  # in /proc/PID/maps
# gRPC's pool for its events.
_POOL: Final = "event_engine"


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of a server hold.

    threads        by name
    files          descriptors by kind: socket, pipe, memory that is shared, and so on
    shared_bytes   of mappings that processes share and that are no file of a disk
    anonymous_mib  memory
    """

    processes: int
    threads: dict[str, int]
    files: dict[str, int]
    shared_bytes: int
    anonymous_mib: float

    @property
    def own_threads(self) -> int:
        """Threads that are not of gRPC's pool."""
        return sum(self.threads.values()) - self.threads.get(_POOL, 0)

    def more_than(self, before: Held) -> list[str]:
        """Say what there is more of than before."""
        pairs = {
            "processes": (before.processes, self.processes),
            "threads": (before.own_threads, self.own_threads),
            # It has some more or fewer as load comes and goes.
            "threads of gRPC's pools": (16 * self.processes, self.threads.get(_POOL, 0)),
            "shared_bytes": (before.shared_bytes, self.shared_bytes),
            **{f"files: {kind}": (before.files.get(kind, 0), n) for kind, n in self.files.items()},
        }
        more = {name: pair for name, pair in pairs.items() if pair[1] > pair[0]}
        return [f"{name}: {was} before, {now} after" for name, (was, now) in more.items()]


def held(pids: set[int]) -> Held:
    """Count what processes hold."""
    files, threads, shared = Counter[str](), Counter[str](), 0
    for pid in pids:
        proc = Path(f"/proc/{pid}")
        threads.update(path.read_text().strip() for path in proc.glob("task/*/comm"))
        files.update(_kind(descriptor) for descriptor in (proc / "fd").iterdir())
        ranges = re.findall(_SHARED, (proc / "maps").read_text(), re.MULTILINE)
        shared += sum(int(stop, 16) - int(start, 16) for start, stop in ranges)
    return Held(len(pids), dict(threads), dict(files), shared, round(anonymous(pids) / _MIB, 1))


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
    found = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        for name in ("RssAnon", "RssShmem"):
            match = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
            found += 1024 * int(match[1]) if match else 0
    return found


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

    The growth is that of the line fitted by least squares. Memory goes up and down with the streams
    under way, so that the line has a slope by chance: three standard errors of it are noise, with
    as many independent samples as the autocorrelation r of the residuals leaves of n, n (1 - r) /
    (1 + r). Where that is little, a twentieth of the memory in use is let pass: the pools of the C
    library and of grpc fill for long. A kilobyte lost with every call of 20 minutes would be some
    thirty times as much.
    """
    time_s, size = np.array(seconds), np.array(memory)
    slope, offset = np.polyfit(time_s, size, 1)
    rest = size - (slope * time_s + offset)
    lag = float(np.clip(np.corrcoef(rest[:-1], rest[1:])[0, 1], 0, 0.99)) if rest.any() else 0.0
    independent = max(3.0, len(rest) * (1 - lag) / (1 + lag))
    error = float(rest.std() / (time_s.std() * np.sqrt(independent)))
    span = float(time_s[-1] - time_s[0])
    return float(slope) * span, max(3 * error * span, _PART * float(np.median(size)))


def _load(
    command: Command, duration_s: float, warm_up_s: float
) -> tuple[ScenarioResult, dict[str, Any]]:
    """Put the server under load; every connection is closed when this returns.

    Returns the scenario's result, and what the caller with many items in one stream saw.
    """
    settings = LoadSettings(duration_s, warm_up_s, timeout_s=30.0)

    def probe() -> Usage:
        """Look at memory that is no file of a disk; processor time has no part in it."""
        pids = family(command.pid)
        return Usage(0.0, anonymous(pids), len(pids))

    connect = partial(AsyncClient, command.address)
    with (
        Callers(command.address, "many") as many,
        Runner(connect, show=lambda _: None, probe=probe) as runner,
    ):
        result = runner.run(MIXED, settings)
    return result, many.seen


def _at_rest(pid: int, before: Held | None) -> Held:
    """Wait until a server holds no more than before, or long enough; return what it holds."""
    until = time.monotonic() + _REST_S
    time.sleep(2)
    found = held(family(pid))
    while before is not None and found.more_than(before) and time.monotonic() < until:
        time.sleep(1)
        found = held(family(pid))
    return found


def run(folder: Path, *, duration_s: float, warm_up_s: float) -> dict[str, Any]:
    """Run it all; return the facts, `failed` among them."""
    with running_command(*_FLAGS, log=folder / "log") as command:
        command.wait_for_log(" worker serves ", times=2)
        _load(command, warm_up_s, 0.0)
        before = _at_rest(command.pid, None)
        result, many = _load(command, duration_s, min(10.0, duration_s / 6))
        after = _at_rest(command.pid, before)
    grown, noise = growth(
        [one.second for one in result.server], [one.rss_mib for one in result.server]
    )
    failed = after.more_than(before)
    lost = [text for text in many["lost"] if not text.startswith("OverloadedError")]
    if lost or many["wrong"]:
        failed.append(f"many in one stream: {many}")
    if duration_s >= _LEAST_FIT_S and grown > noise:
        failed.append(f"memory grew by {grown:.1f} MiB; {noise:.1f} would be noise")
    left = after.anonymous_mib - before.anonymous_mib
    if left > _MOST_LEFT_MIB:
        failed.append(f"at rest {left:.1f} MiB of memory more; {_MOST_LEFT_MIB} may be pools")
    if bad := failures(result):
        ends = {
            f"{flow.name}: {one.status} {one.reason}": one.count
            for flow in result.flows
            for one in flow.outcomes
            if not one.expected
        }
        failed.append(f"{bad} calls failed, or were wrong: {ends}")
    return {
        "machine": machine.facts(),
        "duration_s": duration_s,
        "calls": {flow.name: flow.sent for flow in result.flows} | {"many": many["calls"]},
        "right": {flow.name: flow.ok for flow in result.flows},
        "wrong": sum(flow.wrong for flow in result.flows),
        "p99_ms": {flow.name: flow.corrected.p99_ms for flow in result.flows},
        "outcomes": {flow.name: [asdict(one) for one in flow.outcomes] for flow in result.flows},
        "memory_mib": [one.rss_mib for one in result.server],
        "grown_mib": round(grown, 2),
        "noise_mib": round(noise, 2),
        "before": asdict(before),
        "after": asdict(after),
        "failed": failed,
    }


if __name__ == "__main__":
    REPORT = reported(__doc__, run, duration_s=1200.0, warm_up_s=60.0)
    del REPORT["memory_mib"], REPORT["outcomes"]
    sys.stdout.write(json.dumps(REPORT, indent=1) + "\n")
    sys.exit(bool(REPORT["failed"]))
