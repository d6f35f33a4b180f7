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
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
# Without a limit, version 1 reports the largest number of whole pages.
_UNLIMITED: Final = 1 << 60

# Memory of each worker beside that charged to calls; docs/sizing.md has the figures.
_WORKER_BYTES: Final = 512 << 20
# Address space mapped by libraries, and by memory allocators for their threads.
_MAPPED_BYTES: Final = 1 << 30


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """Return the lowest memory limit of this process's groups.

    None without a limit.

    groups  mount point of the control group file systems
    own     file with the groups of this process
    """
    told = (
        int(word)
        for folder in _folders("memory", groups, own)
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in _words(folder / name)[:1]
        if word.isdecimal()
    )
    return min((limit for limit in told if limit < _UNLIMITED), default=None)


def processors(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the number of processors available to this process, at least 1.

    It is the number of processors in its affinity, or the quota of time, rounded up, if lower.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(groups, own))))


def room_bytes(limit_bytes: int, workers: int) -> int:
    """Return the part of a memory limit left for calls.

    It is the rest besides the workers' own memory, and at least a quarter.
    """
    return max(limit_bytes // 4, limit_bytes - workers * _WORKER_BYTES)


def address_space_room_bytes(workers: int) -> int | None:
    """Return the memory that RLIMIT_AS (`ulimit -v`) leaves for calls.

    None without that limit.

    The limit applies to each worker, and libraries map much of it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return workers * max(limit // 8, limit - _MAPPED_BYTES)


@functools.cache
def _quota(groups: Path, own: Path) -> float:
    """Return the lowest quota of processor time, in processors."""
    shares = [math.inf]
    for folder in _folders("cpu", groups, own):
        words = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):  # noqa: PLR2004
            shares.append(int(words[0]) / int(words[1]))
    return min(shares)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and their parents.

    A container may see its own group as the root, or under its name on the host.
    """
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        inner = root / path.strip("/")
        yield from (one for one in (inner, *inner.parents) if one == root or root in one.parents)


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
