"""The servers of overload.py, and what is told of their calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.http2 import Connection, Outcome

Load = Callable[[Sequence[Connection]], object]

_METHOD = "/gradwire.v1.GradientService/Evaluate"
_CONNECTIONS = 4
_STATUSES = {0: "ok", 1: "CANCELLED", 4: "DEADLINE_EXCEEDED", 8: "RESOURCE_EXHAUSTED"}


@dataclass
class Subject:
    """A server under load and what is known of it.

    rss    anonymous memory in MiB: "idle", "highest", "settled"
    """

    kind: str
    process: subprocess.Popen[str]
    address: str
    rss: dict[str, float] = field(default_factory=dict[str, float])
    ended: float = 0.0

    @classmethod
    def start(cls, kind: str, flags: Sequence[str]) -> Subject:
        """Start a server and wait until it serves."""
        process = subprocess.Popen(  # noqa: S603 - our own server
            [sys.executable, "-m", "gradwire_server", "--address", "127.0.0.1:0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        return cls(kind, process, process.stdout.readline().split()[-1])

    def rss_mib(self) -> float:
        """Return the anonymous memory it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
        return round(int(kib) / 1024, 1)

    def cpu_s(self) -> float:
        """Return the seconds of processor time it has had."""
        times = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").split()
        return (int(times[13]) + int(times[14])) / os.sysconf("SC_CLK_TCK")

    def load(self, messages: Sequence[bytes], run: Load, *, onset_s: float = 0.0) -> dict[str, Any]:
        """Run a load on new connections and say what came of it."""
        connections = [
            Connection(self.address, _METHOD, messages[number % len(messages)])
            for number in range(_CONNECTIONS)
        ]
        before, began = _busy_s(), time.perf_counter()
        busy = {"server": -self.cpu_s(), "load": -_own_cpu_s()}
        run(connections)
        ended = time.perf_counter()
        busy["server"] += self.cpu_s()
        busy["load"] += _own_cpu_s()
        busy["other"] = _busy_s() - before - sum(busy.values())
        for connection in connections:
            connection.close()
        outcomes = [one for connection in connections for one in connection.over]
        later = [one for one in outcomes if one.due >= began + onset_s]
        facts = _summary(later, ended - began - onset_s)
        if onset_s:
            facts["onset"] = _summary(
                [one for one in outcomes if one.due < began + onset_s], onset_s
            )
        for message in sorted(set(messages), key=messages.index) if len(set(messages)) > 1 else ():
            own = [one for each in connections if each.message == message for one in each.over]
            own = [one for one in own if one.due >= began + onset_s]
            facts[f"of connections {messages.index(message)}"] = _summary(
                own, ended - began - onset_s
            )
        facts["unanswered"] = sum(len(connection.open) for connection in connections)
        facts["processors"] = {
            name: round(seconds / (ended - began), 2) for name, seconds in busy.items()
        }
        return facts


def _busy_s() -> float:
    user, nice, system, _, _, *interrupts = (
        int(text) for text in Path("/proc/stat").read_text(encoding="ascii").split()[1:8]
    )
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def _summary(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    served = [one for one in outcomes if one.status == 0]
    refused = [one for one in outcomes if one.status != 0]
    return {
        "served_per_s": round(len(served) / seconds, 1),
        "served_ms": _quantiles(served),
        "refused_share": round(len(refused) / max(1, len(outcomes)), 3),
        "refused_ms": _quantiles(refused),
        "refused_with_retry_info": round(
            sum(one.retry for one in refused) / max(1, len(refused)), 3
        ),
        "statuses": dict(Counter(_STATUSES.get(one.status, str(one.status)) for one in outcomes)),
    }


def _quantiles(outcomes: Sequence[Outcome]) -> dict[str, float]:
    if not outcomes:
        return {}
    ms = np.percentile([one.seconds * 1e3 for one in outcomes], [50, 99, 100])
    return dict(zip(("p50", "p99", "max"), ms.round(2).tolist(), strict=True))
