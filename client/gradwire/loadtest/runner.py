"""Processes that make calls, and the run of scenarios on them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import re
import signal
import ssl
import threading
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

from gradwire import __version__
from gradwire.loadtest import generator
from gradwire.loadtest.generator import Batch, Connect, Phase, now
from gradwire.loadtest.result import (
    FlowResult,
    GeneratorUsage,
    Machine,
    ScenarioResult,
    ServerSecond,
    Tally,
)
from gradwire.loadtest.scenarios import Scenario

# Seconds from the last order to the first call.
_LEAD_S = 0.05
# Seconds that stopped calls, and then processes, have to end.
_ENDING_S = 5.0


class FleetError(RuntimeError):
    """A process ended unexpectedly."""


class Fleet(AbstractContextManager["Fleet"]):
    """Processes that make calls, started by spawn and ended with the block."""

    def __init__(self, connect: Connect, *, processes: int) -> None:
        self._pipes: list[Pipe] = []
        self._processes: list[SpawnProcess] = []
        # It unblocks signals once it runs.
        resource_tracker.ensure_running()
        try:
            for _ in range(processes):
                with _undisturbed():
                    self._start(connect)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, connect: Connect) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=generator.main, args=(theirs, connect), daemon=True)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Process ids of the fleet."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, phase: Phase, tally: Tally, tick: Callable[[], None]) -> KeyboardInterrupt | None:
        """Run a phase in all processes; return an interruption, if any.

        tally  gets the time from which calls count, before the first call, and the reports
        tick   called some times a second

        Calls in flight when the user ends it are reported as stopped.
        """
        for number, pipe in enumerate(self._pipes):
            pipe.send(replace(phase, number=number, processes=len(self._pipes)))
        try:
            for pipe in self._pipes:
                # READY; from here on there is no hurry.
                _received(pipe)
            tally.begin = now() + _LEAD_S + phase.warm_up_s
            for pipe in self._pipes:
                pipe.send(tally.begin)
            self._collect(tally, tick, until=float("inf"))
        except KeyboardInterrupt as error:
            for pipe in self._pipes:
                with suppress(BrokenPipeError):
                    pipe.send(None)
            self._collect(tally, tick, until=now() + _ENDING_S)
            return error
        return None

    def _collect(self, tally: Tally, tick: Callable[[], None], *, until: float) -> None:
        left = set(self._pipes)
        while left and now() < until:
            for pipe in left.intersection(wait(list(left), timeout=0.1)):
                batch = _received(pipe)
                if isinstance(batch, Batch):
                    tally.add(batch)
                    if batch.over:
                        left.discard(pipe)
            tick()

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_ENDING_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


@contextmanager
def _undisturbed() -> Generator[None]:
    """Defer signals that end the program until the block ends.

    Processes started in the block do not receive them.

    They inherit the blocked signals, so that a signal to the group does not end them before they
    can ignore it. Another thread of this process may receive such a signal; a handler then only
    notes it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    usual = {
        number: signal.signal(number, lambda came, _: noted.append(came))
        for number in generator.ENDING
        if callable(signal.getsignal(number))
    }
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, generator.ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in usual.items():
            signal.signal(number, handler)
    for came in noted:
        signal.raise_signal(came)


def _received(pipe: Pipe) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise FleetError("a process that makes calls has ended") from None


# Seconds for finding the peak rate, of which an overload is a multiple.
PEAK_S = 4.0
# Share of a core that a process can use; a busier process makes its calls late.
_BUSY = 0.8
# Accepted delay of calls: so many milliseconds, and such a part of the median.
_LATE_MS, _LATE_PART = 1.0, 0.1
# Right results needed for a meaningful 99th percentile.
_ENOUGH = 100
# Seconds without an answer after which the server counts as gone; half of a shorter scenario.
_SILENT_S = 1.0


class Runner:
    """Runs scenarios on a fleet.

    phase  of each, but for its flows
    probe  samples the server; None if it cannot be seen
    cores  of this machine if the server is on it too; None for a server elsewhere
    show   called some times a second with a line that describes the progress

    interrupted   interruption that ended the last run before its time; None without one
    silent_since  second of the last run since which no server has answered; None if one did
    """

    def __init__(
        self,
        fleet: Fleet,
        phase: Phase,
        *,
        probe: Probe | None,
        cores: int | None,
        show: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._phase = phase
        self._probe = probe
        self._cores = cores
        self._show = show
        self.interrupted: KeyboardInterrupt | None = None
        self.silent_since: float | None = None

    def run(self, scenario: Scenario) -> ScenarioResult:
        """Run one; return its result so far if the user ends it."""
        phase, peak = replace(self._phase, flows=scenario.flows), None
        if scenario.of_peak:
            # The peak rate is that of its first flow in a closed loop.
            first, *others = scenario.flows
            span_s = min(PEAK_S, phase.duration_s)
            alone = replace(phase, flows=(first,), duration_s=span_s)
            tally, _ = self._measured(f"{scenario.name}: peak", alone)
            peak = tally.right / tally.duration_s
            rate = max(1.0, scenario.of_peak * peak)
            phase = replace(phase, flows=(replace(first, callers=0, rate=rate), *others))
        tally, seconds = Tally(phase), list[ServerSecond]()
        if self.interrupted is None and self.silent_since is None:
            tally, seconds = self._measured(scenario.name, phase)
        flows, generators = tally.results(), tally.generators()
        silent = [] if self.silent_since is None else [silence(self.silent_since)]
        return ScenarioResult(
            name=scenario.name,
            summary=scenario.summary,
            duration_s=round(tally.duration_s, 3),
            peak_per_s=None if peak is None else round(peak, 3),
            flows=flows,
            server=seconds,
            generators=generators,
            warnings=[*silent, *warnings(flows, generators, seconds, cores=self._cores)],
        )

    def _measured(self, name: str, phase: Phase) -> tuple[Tally, list[ServerSecond]]:
        """Run flows; return their tally, and the server's usage.

        The tally has the real duration.
        """
        tally = Tally(phase)
        silent_s = min(_SILENT_S, phase.duration_s / 2)

        def tick() -> None:
            self._show(f"{name}: {_progress(tally, silent_s)}")

        with ProcessSampler(self._probe) as sampler:
            self.interrupted = self._fleet.run(phase, tally, tick)
        self.silent_since = tally.silent_since(silent_s)
        if self.interrupted is not None:
            tally.duration_s = min(phase.duration_s, max(0.001, now() - tally.begin))
        return tally, sampler.seconds(tally.begin)


def silence(since_s: float) -> str:
    """Return a message that says since when no server has answered."""
    return f"no server answers since second {since_s:.0f}"


def warnings(
    flows: Sequence[FlowResult],
    generators: Sequence[GeneratorUsage],
    seconds: Sequence[ServerSecond],
    *,
    cores: int | None,
) -> list[str]:
    """Return warnings about figures that may be less accurate than they look."""
    told: list[str] = []
    busy = [one.cpu_cores for one in generators]
    if max(busy, default=0.0) >= _BUSY:
        told.append(
            f"a process that makes calls was busy for {max(busy):.2f} of one core: it may be the "
            "bottleneck, not the server; give more --processes, or another machine"
        )
    late = max((one.late_p99_ms for one in generators), default=0.0)
    p50 = min((flow.corrected.p50_ms for flow in flows if flow.rate and flow.ok), default=0.0)
    if late > max(_LATE_MS, _LATE_PART * p50):
        told.append(
            f"1 % of the calls of open loops were made {late:.1f} ms or more after they were due; "
            "corrected latencies hold that time, uncorrected ones do not"
        )
    taken = sum(busy) + sum(one.cpu_cores for one in seconds) / max(len(seconds), 1)
    if cores is not None and seconds and taken >= 0.9 * cores:
        told.append(
            f"the server and the processes that call it took {taken:.1f} of the {cores} cores that "
            "they share: a server with its machine to itself does better"
        )
    few = [flow for flow in flows if 0 < flow.ok < _ENOUGH]
    return told + [f"{flow.name}: percentiles are those of {flow.ok} calls only" for flow in few]


def _progress(tally: Tally, silent_s: float) -> str:
    elapsed_s = now() - tally.begin
    if elapsed_s < 0:
        return "warming up"
    elapsed_s = min(elapsed_s, tally.duration_s)
    since_s = tally.silent_since(silent_s)
    told = f"{tally.right / max(elapsed_s, 0.1):.0f} right results/s, {tally.other} otherwise ended"
    if since_s is not None:
        told = silence(since_s)
    return f"{elapsed_s:.0f} of {tally.duration_s:.0f} s, {told}"


INTERVAL_S = 1.0
_PROC = Path("/proc")
# Indices of the fields after the name in /proc/PID/stat: parent, ticks of user and system time,
# pages.
_PARENT, _USER, _SYSTEM, _PAGES = 1, 11, 12, 21
_MIB = 1 << 20
_ANSWER_S = 2.0
_SAMPLE = re.compile(
    r"^process_(cpu_seconds_total|resident_memory_bytes)(?:\{[^}]*\})? (\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time so far, and present memory, of processes."""

    cpu_s: float
    rss_bytes: float
    processes: int


# A probe returns the usage; None if it cannot be seen.
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
        rss = sum(int(stats[pid][_PAGES]) for pid in alive) * os.sysconf("SC_PAGE_SIZE")
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
        told: dict[str, list[float]] = {"cpu_seconds_total": [], "resident_memory_bytes": []}
        for name, value in _SAMPLE.findall(text):
            told[name].append(float(value))
        cpu_s, rss = told.values()
        return Usage(sum(cpu_s), sum(rss), len(cpu_s)) if cpu_s else None


class ProcessSampler:
    """Takes a sample each second in its own thread.

    It runs until the block ends.
    """

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

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _stats() -> dict[int, list[str]]:
    """Return the fields after the name in /proc/PID/stat, by process."""
    stats: dict[int, list[str]] = {}
    for entry in _PROC.iterdir() if _PROC.exists() else ():
        if entry.name.isdecimal():
            # Processes may end meanwhile.
            with contextlib.suppress(OSError):
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                stats[int(entry.name)] = text.rpartition(")")[2].split()
    return stats


_PACKAGES = ("grpcio", "numpy", "protobuf")


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
        versions={"gradwire": __version__, **{name: version(name) for name in _PACKAGES}},
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text("utf-8", errors="replace") if path.exists() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
