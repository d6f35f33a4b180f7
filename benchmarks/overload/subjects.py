"""The servers of overload.py, and what is told of their calls."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.overload.http2 import Connection, Outcome
from benchmarks.servers import Server, own_cpu_s

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
    server: Server
    rss: dict[str, float] = field(default_factory=dict[str, float])
    ended: float = 0.0

    def rss_mib(self) -> float:
        """Return the anonymous memory it holds."""
        return round(self.server.rss_anon() / (1 << 20), 1)

    def load(self, messages: Sequence[bytes], run: Load, *, onset_s: float = 0.0) -> dict[str, Any]:
        """Run a load on new connections and say what came of it."""
        connections = [
            Connection(self.server.address, _METHOD, messages[number % len(messages)])
            for number in range(_CONNECTIONS)
        ]
        before, began = _busy_s(), time.perf_counter()
        busy = {"server": -self.server.cpu_s(), "load": -own_cpu_s()}
        run(connections)
        ended = time.perf_counter()
        busy["server"] += self.server.cpu_s()
        busy["load"] += own_cpu_s()
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
