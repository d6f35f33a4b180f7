"""Latencies, goodput and refusals at three times a server's peak load.

    python -m benchmarks overload [--kinds ms,...] [--flags ...] [--json FILE]

Each kind has a server in a process of its own, with the default settings unless --flags says
otherwise; the load comes from this process over loopback (http2.py), and both share the
machine's cores. In turn:

- peak      most calls per second of 2, 4 and 8 callers back to back on 4 connections; with
            too many callers some calls are refused, and repeated at once
- unloaded  calls due at a fifth of that rate, independent of their results
- overload  the same at three times that rate; `onset` are those due in its first 2 s, while the
            server treats it as a burst, the other figures are of calls due later

The kinds of calls are in kinds.py. A latency counts from the time a call was due. A refusal has a
retry delay (RetryInfo). Memory is anonymous RSS: after a few calls (idle), at its highest, and
--settle seconds after the load. Without served calls there are no latencies, and figures derived
from them are null. `processors` is the processor time per second that the server, this process and
others took: above 0.1 of others figures are worth little. `cost_ms` is a call's processor time,
here and in the server: of a served call, from the peak; of a refused one, the rest of the
overload's, divided by their number. `goodput_bound` is the goodput over peak that those costs would
allow if no core was ever idle:

    served * peak * goodput + refused * (3 - goodput) * peak = cores
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.overload.http2 import Connection, Outcome, closed_loop, open_loop
from benchmarks.overload.kinds import requests, streaming
from benchmarks.servers import OURS, Server, own_cpu_s, started

Load = Callable[[Sequence[Connection]], object]

_METHOD = "/gradwire.v1.GradientService/Evaluate"
_CONNECTIONS = 4
_CALLERS = (2, 4, 8)
_ONSET_S = 2.0
_STATUSES = {0: "ok", 1: "CANCELLED", 4: "DEADLINE_EXCEEDED", 8: "RESOURCE_EXHAUSTED"}


@dataclass
class LoadedServer:
    """A server under load, with its measurements.

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
        """Run a load on new connections; return the results."""
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


@contextmanager
def _sampling(one: LoadedServer) -> Generator[None]:
    """Record the highest memory meanwhile."""
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            one.rss["highest"] = max(one.rss.get("highest", 0.0), one.rss_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    yield
    done.set()
    thread.join()


def _measure(one: LoadedServer, messages: Sequence[bytes], seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": one.kind}
    one.load(messages, lambda some: closed_loop(some, 2, 0.5))
    time.sleep(2.0)
    one.rss["idle"] = one.rss_mib()

    def during(name: str, run: Load, *, onset_s: float = 0.0) -> dict[str, Any]:
        with streaming(one.server.address if one.kind == "streams" else "") as streams:
            found = one.load(messages, run, onset_s=onset_s)
        if streams:
            found["streams"] = streams[0]
        facts[name] = found
        return found

    with _sampling(one):
        peaks = {
            callers: during("peak", partial(closed_loop, callers=callers, seconds=seconds))
            for callers in _CALLERS
        }
        callers, facts["peak"] = max(peaks.items(), key=lambda one: one[1]["served_per_s"])
        peak = facts["peak"]["served_per_s"]
        facts["callers_at_peak"] = callers
        # If no call was served at all, the rate is about one call per second.
        unit = peak or 1.0
        during("unloaded", lambda some: open_loop(some, unit / 5, seconds))
        lasting_s = _ONSET_S + 2 * seconds
        during("overload", lambda some: open_loop(some, 3 * unit, lasting_s), onset_s=_ONSET_S)
    one.ended = time.monotonic()
    overload, unloaded = facts["overload"], facts["unloaded"]
    facts["goodput_over_peak"] = _over(overload["served_per_s"], peak)
    facts["p99_over_unloaded"] = _over(
        overload["served_ms"].get("p99"), unloaded["served_ms"].get("p99")
    )
    facts["cost_ms"], facts["goodput_bound"] = _costs(facts["peak"], overload, lasting_s)
    return facts


def _over(one: float | None, other: float | None) -> float | None:
    """Return a ratio; None if nothing was served."""
    return round(one / other, 2) if one is not None and other else None


def _costs(
    peak: dict[str, Any], overload: dict[str, Any], seconds: float
) -> tuple[dict[str, float], float | None]:
    def busy(facts: dict[str, Any]) -> float:
        return float(facts["processors"]["server"] + facts["processors"]["load"])

    counts: Counter[str] = Counter(overload["statuses"])
    counts.update(overload["onset"]["statuses"])
    rate, cores = peak["served_per_s"], len(os.sched_getaffinity(0))
    if not rate:
        return {}, None
    served_s = busy(peak) / rate
    refused = counts.total() - counts["ok"]
    refused_s = (busy(overload) * seconds - counts["ok"] * served_s) / max(1, refused)
    bound = (cores / rate - 3 * refused_s) / (served_s - refused_s)
    costs = {"served": round(served_s * 1e3, 2), "refused": round(refused_s * 1e3, 2)}
    return costs, round(bound, 2)


def _run(kinds: Sequence[str], flags: Sequence[str], *, seconds: float, settle_s: float) -> Any:
    messages = requests()
    loaded: list[LoadedServer] = []
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for kind in kinds:
            loaded.append(LoadedServer(kind, stack.enter_context(started(*OURS, *flags))))
            found.append(_measure(loaded[-1], messages[kind], seconds))
        for one, facts in zip(loaded, found, strict=True):
            time.sleep(max(0.0, one.ended + settle_s - time.monotonic()))
            one.rss["settled"] = one.rss_mib()
            facts["rss_mib"] = one.rss
    return {"flags": list(flags), "kinds": found}


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("overload", __doc__)
    parser.add_argument("--kinds", default="ms,work,long,mix,medium,tiny,streams")
    parser.add_argument("--flags", default="", help="of the servers, as one text")
    parser.add_argument("--seconds", type=float, default=3.0, help="of peak and unloaded each")
    parser.add_argument("--settle", type=float, default=60.0)
    arguments = parser.parse_args(argv)
    kinds = arguments.kinds.split(",")
    facts = _run(
        kinds, arguments.flags.split(), seconds=arguments.seconds, settle_s=arguments.settle
    )
    machine.write(arguments.json, facts)
    print(json.dumps(facts, indent=2))
    return 0
