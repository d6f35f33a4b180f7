"""Memory and CPU limits of the container, from Linux's control groups.

Without them a server would admit calls beyond the available memory and be killed, and compute in
more threads than get processor time. https://docs.kernel.org/admin-guide/cgroup-v2.html has
memory.max and cpu.max, .../cgroup-v1/memory.html memory.limit_in_bytes, and
https://docs.kernel.org/scheduler/sched-bwc.html cpu.cfs_quota_us.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

# Mount point of the control group file systems, and the file with the groups of this process.
GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
# Without a limit, version 1 reports a larger number.
UNLIMITED = 1 << 60

# Memory of each worker beside that charged to calls; docs/sizing.md has the figures.
_WORKER_BYTES = 512 << 20


def memory_bytes() -> int:
    """Return the lowest memory limit of this process's groups.

    At least UNLIMITED without a limit.
    """
    told = _read("memory", ("memory.max", "memory.limit_in_bytes"))
    return min((int(words[0]) for words in told if words[0].isdecimal()), default=UNLIMITED)


@functools.cache
def processors() -> int:
    """Return the number of processors available to this process, at least 1.

    It is the number of processors in its affinity, or the quota of time, rounded up, if lower.
    """
    told = _read("cpu", ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
    quotas = (int(words[0]) / int(words[1]) for words in told if words[0].isdecimal())
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def room_bytes(workers: int) -> int:
    """Return the part of the memory limit left for calls.

    It is the rest besides the workers' own memory, and at least a quarter.
    """
    limit = memory_bytes()
    return max(limit // 4, limit - workers * _WORKER_BYTES)


def _read(controller: str, names: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the words of files, of this process's groups and their parents.

    A container may see its own group as the root, or under its name on the host.
    """
    for line in _text(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        inner = root / path.strip("/")
        for folder in (inner, *inner.parents):
            words = " ".join(_text(folder / name) for name in names).split()
            if words and folder.is_relative_to(root):
                yield words


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
