"""Processor time of process trees and of the machine, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IDLE_CORES: Final = 0.15


def tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _fields(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(pids: list[int]) -> float:
    """Return the seconds of processor time that these processes have taken."""
    stats = [_fields(pid) for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields) / _TICKS


def busy_s() -> float:
    """Return the seconds of processor time that the machine has spent."""
    with Path("/proc/stat").open(encoding="utf-8") as lines:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, lines.readline().split()[1:9]
        )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def wait_idle(seconds: int, limit_s: int) -> bool:
    """Wait until the machine has been idle for so long.

    Returns False after the limit.
    """
    until = time.monotonic() + limit_s
    idle = 0
    while idle < seconds:
        if time.monotonic() > until:
            return False
        before = busy_s()
        time.sleep(1)
        idle = idle + 1 if busy_s() - before < _IDLE_CORES else 0
    return True


def _fields(pid: int) -> list[str]:
    """Return the fields after the name in a process's stat.

    They are empty for a process that has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return []
    # The name in parentheses may hold anything.
    return text.rpartition(")")[2].split()
