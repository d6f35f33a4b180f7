"""Three times more calls than a server can do: who is served how fast, and who is refused how.

    PYTHONPATH=tests python -m bench.overload [--kinds ms,...] [--flags ...] [--json FILE]

Each kind has a server in a process of its own, with the default settings unless --flags says
otherwise; the load comes from this process over loopback (bench.http2), and both share the
machine's cores. In turn:

- peak      calls per second of 2, 4 and 8 callers back to back on 4 connections, whichever are
            served most; of too many some are refused, and call again at once
- unloaded  calls due at a fifth of that rate, whatever becomes of them
- overload  the same at three times that rate; `onset` are those due in its first 2 s, while the
            server takes it for a burst, the other figures are of those due later

The kinds of calls are in overload_kinds.py. A latency counts from the time a call was due. A
refusal says when to come back (RetryInfo). Memory is anonymous RSS: after a few calls (idle), at
its highest, and --settle seconds after the load.
`processors` is the processor time per second that the server, this process and others took: above
0.1 of others figures are worth little. `cost_ms` is what a call takes of that, here and in the
server: served, from the peak; refused, what is left of the overload's for each. `goodput_bound` is
what goodput over peak could be at those costs if no core was ever idle:

    served * peak * goodput + refused * (3 - goodput) * peak = cores
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.http2 import Connection, Outcome, closed_loop, open_loop
from bench.overload_kinds import BILINEAR, requests
from gradwire import Client

Load = Callable[[Sequence[Connection]], object]

_METHOD = "/gradwire.v1.GradientService/Evaluate"
_CONNECTIONS, _CALLERS = 4, (2, 4, 8)
_STREAMED = (1, 4, 1024, 1024)
_ONSET_S = 2.0
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


@contextmanager
def _sampling(subject: Subject) -> Generator[None]:
    """Note the highest memory meanwhile."""
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.05):
            subject.rss["highest"] = max(subject.rss.get("highest", 0.0), subject.rss_mib())

    thread = threading.Thread(target=sample)
    thread.start()
    yield
    done.set()
    thread.join()


@contextmanager
def _streaming(subject: Subject) -> Generator[list[int]]:
    """Have two callers stream meanwhile, from a process of their own; give their finished calls."""
    if subject.kind != "streams":
        yield []
        return
    command = [sys.executable, "-m", "bench.overload", "--stream-to", subject.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    counts: list[int] = []
    try:
        yield counts
    finally:
        process.terminate()
        assert process.stdout is not None
        counts.append(sum(1 for _ in process.stdout))
        process.wait()


def _stream(address: str) -> None:
    """Stream back to back until ended, and print a line for every call."""
    array = np.ones(_STREAMED, np.float32)
    shape = (*_STREAMED[:2], _STREAMED[2] // 2, _STREAMED[3] // 2)
    with Client(address) as client:

        def call() -> None:
            while True:
                client.evaluate(BILINEAR, array, output_shape=shape)
                print(flush=True)  # noqa: T201 - what the parent counts

        threads = [threading.Thread(target=call, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _measure(subject: Subject, messages: Sequence[bytes], seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": subject.kind}
    subject.load(messages, lambda some: closed_loop(some, 2, 0.5))
    time.sleep(2.0)
    subject.rss["idle"] = subject.rss_mib()

    def during(name: str, run: Load, *, onset_s: float = 0.0) -> dict[str, Any]:
        with _streaming(subject) as streams:
            found = subject.load(messages, run, onset_s=onset_s)
        if streams:
            found["streams"] = streams[0]
        facts[name] = found
        return found

    with _sampling(subject):
        peaks = {
            callers: during("peak", partial(closed_loop, callers=callers, seconds=seconds))
            for callers in _CALLERS
        }
        callers, facts["peak"] = max(peaks.items(), key=lambda one: one[1]["served_per_s"])
        peak = facts["peak"]["served_per_s"]
        facts["callers_at_peak"] = callers
        during("unloaded", lambda some: open_loop(some, peak / 5, seconds))
        lasting_s = _ONSET_S + 2 * seconds
        during("overload", lambda some: open_loop(some, 3 * peak, lasting_s), onset_s=_ONSET_S)
    subject.ended = time.monotonic()
    overload, unloaded = facts["overload"], facts["unloaded"]
    facts["goodput_over_peak"] = round(overload["served_per_s"] / peak, 2)
    facts["p99_over_unloaded"] = round(
        overload["served_ms"]["p99"] / unloaded["served_ms"]["p99"], 2
    )
    facts["cost_ms"], facts["goodput_bound"] = _costs(facts["peak"], overload, lasting_s)
    return facts


def _costs(
    peak: dict[str, Any], overload: dict[str, Any], seconds: float
) -> tuple[dict[str, float], float]:
    def busy(facts: dict[str, Any]) -> float:
        return float(facts["processors"]["server"] + facts["processors"]["load"])

    counts: Counter[str] = Counter(overload["statuses"])
    counts.update(overload["onset"]["statuses"])
    rate, cores = peak["served_per_s"], len(os.sched_getaffinity(0))
    served_s = busy(peak) / rate
    refused = counts.total() - counts["ok"]
    refused_s = (busy(overload) * seconds - counts["ok"] * served_s) / max(1, refused)
    bound = (cores / rate - 3 * refused_s) / (served_s - refused_s)
    costs = {"served": round(served_s * 1e3, 2), "refused": round(refused_s * 1e3, 2)}
    return costs, round(bound, 2)


def _run(kinds: Sequence[str], flags: Sequence[str], *, seconds: float, settle_s: float) -> Any:
    messages = requests()
    subjects: list[Subject] = []
    found: list[dict[str, Any]] = []
    try:
        for kind in kinds:
            subjects.append(Subject.start(kind, flags))
            found.append(_measure(subjects[-1], messages[kind], seconds))
        for subject, facts in zip(subjects, found, strict=True):
            time.sleep(max(0.0, subject.ended + settle_s - time.monotonic()))
            subject.rss["settled"] = subject.rss_mib()
            facts["rss_mib"] = subject.rss
    finally:
        for subject in subjects:
            subject.process.terminate()
            subject.process.wait()
    return {"machine": machine.facts(), "flags": list(flags), "kinds": found}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", default="ms,work,long,mix,medium,tiny,streams")
    parser.add_argument("--flags", default="", help="of the servers, as one text")
    parser.add_argument("--seconds", type=float, default=3.0, help="of peak and unloaded each")
    parser.add_argument("--settle", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stream-to", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stream_to:
        _stream(arguments.stream_to)
        return
    kinds = arguments.kinds.split(",")
    facts = _run(
        kinds, arguments.flags.split(), seconds=arguments.seconds, settle_s=arguments.settle
    )
    text = json.dumps(facts, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
