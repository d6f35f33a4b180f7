"""Samples of the server's processor time and memory, and facts about this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import ssl
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gradwire import __version__
from gradwire.loadtest.generator import now
from gradwire.loadtest.result import Machine, ServerSecond

INTERVAL_S: Final = 1.0
_PROC: Final = Path("/proc")
# Of what follows the name in /proc/PID/stat: parent, ticks of user and system time, pages.
_PARENT, _USER, _SYSTEM, _PAGES = 1, 11, 12, 21
_MIB: Final = 1 << 20
_ANSWER_S: Final = 2.0
_SAMPLE: Final = re.compile(
    r"^(process_cpu_seconds_total|process_resident_memory_bytes)(?:\{[^}]*\})? (\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time so far, and present memory, of processes."""

    cpu_s: float
    rss_bytes: float
    processes: int


# Looks; None where there is nothing to see.
Probe = Callable[[], Usage | None]


class ProcessTree:
    """A process of this machine and its descendants, from /proc."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu_s: dict[int, float] = {}

    def __call__(self) -> Usage | None:
        """Return their usage, including processes that have ended."""
        stats = _stats()
        alive = {self._root} & stats.keys()
        while more := {pid for pid, stat in stats.items() if int(stat[_PARENT]) in alive} - alive:
            alive |= more
        tick = os.sysconf("SC_CLK_TCK")
        for pid in alive:
            self._cpu_s[pid] = (int(stats[pid][_USER]) + int(stats[pid][_SYSTEM])) / tick
        pages = sum(int(stats[pid][_PAGES]) for pid in alive)
        rss = pages * os.sysconf("SC_PAGE_SIZE")
        return Usage(sum(self._cpu_s.values()), rss, len(alive)) if alive else None


class MetricsEndpoint:
    """A server's Prometheus endpoint.

    headers  of the request
    context  of https; None for the system's authorities
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - checked
        self._context = context

    def __call__(self) -> Usage | None:
        """Return the reported usage; None without an answer."""
        try:
            return self.ask()
        except (OSError, HTTPException):
            return None

    def ask(self) -> Usage | None:
        """Return the reported usage; None for another answer.

        Raises OSError or HTTPException without a usable answer.
        """
        with urllib.request.urlopen(  # noqa: S310 - checked
            self._request, timeout=_ANSWER_S, context=self._context
        ) as answer:
            text = answer.read().decode(errors="replace")
        cpu_s, rss, processes = 0.0, 0.0, 0
        for name, value in _SAMPLE.findall(text):
            if name.startswith("process_cpu"):
                cpu_s += float(value)
                processes += 1
            else:
                rss += float(value)
        return Usage(cpu_s, rss, processes) if processes else None


class ProcessSampler:
    """Looks once a second, in a thread of its own, until the block ends."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe
        self._over = threading.Event()
        self._seen: list[tuple[float, Usage]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def seconds(self, begin: float) -> list[ServerSecond]:
        """Return the samples from a time on, each interval at its end."""
        told: list[ServerSecond] = []
        for (before, was), (time, usage) in zip(self._seen, self._seen[1:], strict=False):
            if time > begin:
                told.append(
                    ServerSecond(
                        second=round(time - begin, 2),
                        cpu_cores=round((usage.cpu_s - was.cpu_s) / (time - before), 3),
                        rss_mib=round(usage.rss_bytes / _MIB, 1),
                        processes=usage.processes,
                    )
                )
        return told

    def _run(self) -> None:
        while self._probe is not None:
            if (usage := self._probe()) is not None:
                self._seen.append((now(), usage))
            if self._over.wait(INTERVAL_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


def _stats() -> dict[int, list[str]]:
    """Return what follows the name in /proc/PID/stat, of every process."""
    stats: dict[int, list[str]] = {}
    for entry in _PROC.iterdir() if _PROC.exists() else ():
        if entry.name.isdecimal():
            # Processes end while one looks.
            with contextlib.suppress(OSError):
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                stats[int(entry.name)] = text.rpartition(")")[2].split()
    return stats


_PACKAGES: Final = ("grpcio", "numpy", "protobuf")


def machine() -> Machine:
    """Describe this machine."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return Machine(
        cpu=_cpu(),
        cores=cores,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        system=platform.platform(),
        python=platform.python_version(),
        versions={"gradwire": __version__, **{name: _version(name) for name in _PACKAGES}},
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
