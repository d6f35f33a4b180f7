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

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Without a limit, version 1 reports a larger number.
UNLIMITED = 1 << 60

# Memory of each worker beside that charged to calls; docs/sizing.md has the figures.
_WORKER_BYTES = 512 << 20


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the lowest memory limit of this process's groups.

    At least UNLIMITED without a limit.

    groups  mount point of the control group file systems
    own     file with the groups of this process
    """
    told = _read("memory", ("memory.max", "memory.limit_in_bytes"), groups, own)
    return min((int(words[0]) for words in told if words[0].isdecimal()), default=UNLIMITED)


def processors(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the number of processors available to this process, at least 1.

    It is the number of processors in its affinity, or the quota of time, rounded up, if lower.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(groups, own))))


@functools.cache
def _quota(groups: Path, own: Path) -> float:
    """Return the lowest quota of processor time, in processors."""
    told = _read("cpu", ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"), groups, own)
    quotas = (int(words[0]) / int(words[1]) for words in told if words[0].isdecimal())
    return min(quotas, default=math.inf)


def room_bytes(workers: int) -> int:
    """Return the part of the memory limit left for calls.

    It is the rest besides the workers' own memory, and at least a quarter.
    """
    limit = memory_bytes()
    return max(limit // 4, limit - workers * _WORKER_BYTES)


def _read(controller: str, names: tuple[str, ...], groups: Path, own: Path) -> Iterator[list[str]]:
    """Yield the words of files, of this process's groups and their parents.

    A container may see its own group as the root, or under its name on the host.
    """
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
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
