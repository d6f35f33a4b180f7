"""Processes that make calls, and the run of scenarios on them."""

from __future__ import annotations

import os
import platform
import re
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from importlib.metadata import version
from itertools import pairwise
from multiprocessing import connection
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from gradwire import __version__
from gradwire.loadtest.generator import Batch, Connect, LoadSettings, Phase, now
from gradwire.loadtest.result import (
    FlowResult,
    GeneratorUsage,
    Machine,
    ScenarioResult,
    ServerSecond,
    Tally,
)
from gradwire.loadtest.scenarios import Scenario, changed

# Seconds from the last order to the first call.
_LEAD_S = 0.05
# Seconds that processes have to end.
_ENDING_S = 5.0
_PROGRAM = "from gradwire.loadtest.generator import main; main()"


class Fleet(AbstractContextManager["Fleet"]):
    """Processes that make calls, which end with the block.

    Each has a session of its own: Ctrl-C reaches the leading process only.
    """

    def __init__(self, connect: Connect, *, processes: int) -> None:
        self._pipes: list[Pipe] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(processes):
                self._start(connect)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, connect: Connect) -> None:
        ours, theirs = connection.Pipe()
        self._pipes.append(ours)
        with theirs:
            descriptor = theirs.fileno()
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-c", _PROGRAM, str(descriptor)],
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
            )
        ours.send(connect)

    def run(self, phase: Phase, tally: Tally, tick: Callable[[], None]) -> None:
        """Run a phase in all processes.

        tally  gets the time from which calls count, before the first call, and the reports
        tick   called some times a second
        """
        for number, pipe in enumerate(self._pipes):
            pipe.send(replace(phase, number=number))
        for pipe in self._pipes:
            # READY; from here on there is no hurry.
            _received(pipe)
        tally.begin = now() + _LEAD_S + phase.settings.warm_up_s
        for pipe in self._pipes:
            pipe.send(tally.begin)
        left = set(self._pipes)
        while left:
            for pipe in left.intersection(connection.wait(list(left), timeout=0.1)):
                batch: Batch = _received(pipe)
                tally.add(batch)
                if batch.over:
                    left.discard(pipe)
            tick()

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            try:
                process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _received(pipe: Pipe) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise ChildProcessError("a process that makes calls has ended") from None


# Seconds for finding the peak rate, of which an overload is a multiple.
PEAK_S = 4.0
# Share of a core that a process can use; a busier process makes its calls late.
_BUSY = 0.8
# Accepted delay of calls: so many milliseconds, and such a part of the median.
_LATE_MS, _LATE_PART = 1.0, 0.1
# Right results needed for a meaningful 99th percentile.
_ENOUGH = 100


@dataclass
class Runner:
    """Runs scenarios on a fleet.

    probe  samples the server; None if it cannot be seen
    cores  of this machine if the server is on it too; None for a server elsewhere
    show   called some times a second with a line that describes the progress

    interrupted  interruption that ended the last run before its time; None without one
    """

    fleet: Fleet
    settings: LoadSettings
    probe: Probe | None
    cores: int | None
    show: Callable[[str], None]
    interrupted: KeyboardInterrupt | None = field(default=None, init=False)

    def run(self, scenario: Scenario) -> ScenarioResult:
        """Run one, as the settings change it; return its result.

        It is the result so far if the user ends the run.
        """
        settings, peak = self.settings, None
        scenario = changed(scenario, rate=settings.rate, callers=settings.callers)
        flows = scenario.flows
        if scenario.of_peak:
            # The peak rate is that of its first flow in a closed loop.
            first, *others = flows
            span_s = min(PEAK_S, settings.duration_s)
            alone = Phase((first,), replace(settings, duration_s=span_s))
            tally, _ = self._measured(f"{scenario.name}: peak", alone)
            peak = tally.right / tally.duration_s
            rate = max(1.0, scenario.of_peak * peak)
            flows = (replace(first, callers=0, rate=rate), *others)
        phase = Phase(flows, settings)
        tally, seconds = Tally(phase), list[ServerSecond]()
        if self.interrupted is None:
            tally, seconds = self._measured(scenario.name, phase)
        results, generators = tally.results(), tally.generators()
        return ScenarioResult(
            name=scenario.name,
            summary=scenario.summary,
            duration_s=round(tally.duration_s, 3),
            peak_per_s=None if peak is None else round(peak, 3),
            flows=results,
            server=seconds,
            generators=generators,
            warnings=warnings(results, generators, seconds, cores=self.cores),
        )

    def _measured(self, name: str, phase: Phase) -> tuple[Tally, list[ServerSecond]]:
        """Run flows; return their tally, and the server's usage.

        The tally has the real duration.
        """
        tally = Tally(phase)
        with _sampling(self.probe) as samples:
            try:
                self.fleet.run(phase, tally, lambda: self.show(f"{name}: {_progress(tally)}"))
            except KeyboardInterrupt as error:
                self.interrupted = error
                tally.duration_s = min(tally.duration_s, max(0.001, now() - tally.begin))
        return tally, _server_seconds(samples, tally.begin)


def warnings(
    flows: Sequence[FlowResult],
    generators: Sequence[GeneratorUsage],
    seconds: Sequence[ServerSecond],
    *,
    cores: int | None,
) -> list[str]:
    """Return warnings about figures that may be less accurate than they look."""
    told: list[str] = []
    busy = [0.0, *(one.cpu_cores for one in generators)]
    if max(busy) >= _BUSY:
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


def _progress(tally: Tally) -> str:
    elapsed_s = min(now() - tally.begin, tally.duration_s)
    if elapsed_s < 0:
        return "warming up"
    return (
        f"{elapsed_s:.0f} of {tally.duration_s:.0f} s, {tally.right / max(elapsed_s, 0.1):.0f} "
        f"right results/s, {tally.other} otherwise ended"
    )


INTERVAL_S = 1.0
_ANSWER_S = 2.0
_SAMPLES = (
    r"^process_cpu_seconds_total(?:\{[^}]*\})? (\S+)",
    r"^process_resident_memory_bytes(?:\{[^}]*\})? (\S+)",
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time so far, and present memory, of processes."""

    cpu_s: float
    rss_bytes: float
    processes: int


# A probe returns the usage; it raises OSError if the server cannot be seen.
Probe = Callable[[], Usage]


@dataclass(frozen=True)
class MetricsEndpoint:
    """A server's Prometheus endpoint.

    headers  of the request
    context  of https; None for the system's authorities
    """

    url: str
    headers: dict[str, str] | None = None
    context: ssl.SSLContext | None = None

    def __call__(self) -> Usage:
        """Return the reported usage; raise OSError without a usable answer."""
        request = urllib.request.Request(self.url, headers=self.headers or {})  # noqa: S310 - checked
        try:
            with urllib.request.urlopen(  # noqa: S310 - checked
                request, timeout=_ANSWER_S, context=self.context
            ) as answer:
                text = answer.read().decode(errors="replace")
        except HTTPException as error:
            raise OSError(f"the answer is not HTTP: {error}") from error
        cpu_s, rss = (
            [*map(float, re.findall(pattern, text, re.MULTILINE))] for pattern in _SAMPLES
        )
        if not cpu_s:
            raise OSError(
                "no processor time and memory is told there; give the /metrics of the server's "
                "--http-port"
            )
        return Usage(sum(cpu_s), sum(rss), len(cpu_s))


@contextmanager
def _sampling(probe: Probe | None) -> Generator[list[tuple[float, Usage]]]:
    """Yield a list that gets a sample each second, with its time."""
    samples: list[tuple[float, Usage]] = []
    over = threading.Event()

    def sample() -> None:
        while probe is not None:
            with suppress(OSError):
                samples.append((now(), probe()))
            if over.wait(INTERVAL_S):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _server_seconds(samples: Sequence[tuple[float, Usage]], begin: float) -> list[ServerSecond]:
    """Return the samples from a time on.

    Each stands at the end of its interval.
    """
    return [
        ServerSecond(
            second=round(time - begin, 2),
            cpu_cores=round((usage.cpu_s - was.cpu_s) / (time - before), 3),
            rss_mib=round(usage.rss_bytes / 2**20, 1),
            processes=usage.processes,
        )
        for (before, was), (time, usage) in pairwise(samples)
        if time > begin
    ]


_PACKAGES = ("grpcio", "numpy", "protobuf")


def machine() -> Machine:
    """Describe this machine."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    path = Path("/proc/cpuinfo")
    text = path.read_text("utf-8", errors="replace") if path.exists() else ""
    named = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return Machine(
        cpu=named[1] if named else platform.machine(),
        cores=cores,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        system=platform.platform(),
        python=platform.python_version(),
        versions={"gradwire": __version__, **{name: version(name) for name in _PACKAGES}},
        load=round(os.getloadavg()[0], 2),
    )
