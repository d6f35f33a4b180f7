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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib.metadata import version
from itertools import pairwise
from multiprocessing import connection
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from urllib.error import HTTPError

from gradwire import __version__
from gradwire.errors import GradwireError, PermissionDeniedError
from gradwire.loadtest.generator import Batch, Connect, GeneratorUsage, LoadSettings, Phase, now
from gradwire.loadtest.result import FlowResult, Machine, ScenarioResult, ServerSecond, Tally
from gradwire.loadtest.scenarios import Scenario, changed

# Seconds from the last order to the first call.
_LEAD_S = 0.05
# Seconds for finding the peak rate, of which an overload is a multiple.
PEAK_S = 4.0
_PROGRAM = "from gradwire.loadtest.generator import main; main()"


class Runner(AbstractContextManager["Runner"]):
    """Processes that make calls; it runs scenarios on them.

    They start with the first run and end with the block. Each has a session of its own: Ctrl-C
    reaches the leading process only.

    connect  makes their clients
    show     called some times a second with a line that describes the progress
    probe    samples the server; None if it cannot be seen
    cores    of this machine if the server is on it too; None for a server elsewhere

    interrupted  interruption that ended the last run before its time; None without one
    """

    def __init__(
        self,
        connect: Connect,
        *,
        show: Callable[[str], None],
        probe: Probe | None = None,
        cores: int | None = None,
    ) -> None:
        self._connect = connect
        self._probe = probe
        self._cores = cores
        self._show = show
        self._pipes: list[Pipe] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.interrupted: KeyboardInterrupt | None = None

    def _start(self) -> None:
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
        ours.send(self._connect)

    def run(self, scenario: Scenario, settings: LoadSettings) -> ScenarioResult:
        """Run one, as the settings change it; return its result.

        It is the result so far if the user ends the run. Raises the interruption if no call counted
        by then.
        """
        scenario = changed(scenario, rate=settings.rate, callers=settings.callers)
        flows, peak = scenario.flows, None
        if scenario.of_peak:
            # The peak rate is that of its first flow in a closed loop.
            first, *others = flows
            short = replace(settings, duration_s=min(PEAK_S, settings.duration_s))
            tally, _ = self._measured(f"{scenario.name}: peak", Phase((first,), short))
            if self.interrupted is not None:
                raise self.interrupted
            peak = round(tally.right / tally.duration_s, 3)
            flows = (replace(first, callers=0, rate=max(1.0, scenario.of_peak * peak)), *others)
        tally, seconds = self._measured(scenario.name, Phase(flows, settings))
        results, generators = tally.results(), tally.generators
        if self.interrupted is not None and not any(flow.sent for flow in results):
            raise self.interrupted
        return ScenarioResult(
            name=scenario.name,
            summary=scenario.summary,
            duration_s=round(tally.duration_s, 3),
            peak_per_s=peak,
            flows=results,
            server=seconds,
            generators=generators,
            warnings=warnings(results, generators, seconds, cores=self._cores),
        )

    def _measured(self, name: str, phase: Phase) -> tuple[Tally, list[ServerSecond]]:
        """Run flows; return their tally, and the server's usage.

        The tally has the real duration.
        """
        tally = Tally(phase)
        with _sampling(self._probe) as samples:
            try:
                for _ in self._calls(phase, tally):
                    self._show(f"{name}: {_progress(tally)}")
            except KeyboardInterrupt as error:
                self.interrupted = error
                tally.duration_s = min(tally.duration_s, max(0.001, now() - tally.begin))
            except (EOFError, ConnectionResetError):
                raise ChildProcessError("a process that makes calls has ended") from None
            finally:
                self._show("")
        return tally, _server_seconds(samples, tally.begin)

    def _calls(self, phase: Phase, tally: Tally) -> Iterator[None]:
        """Run a phase in all processes; yield some times a second.

        tally  gets the time from which calls count, before the first call, and the reports
        """
        for number in range(phase.settings.processes):
            if number == len(self._pipes):
                self._start()
            self._pipes[number].send(replace(phase, number=number))
        for pipe in self._pipes:
            # It is ready; from here on there is no hurry.
            pipe.recv()
        tally.begin = now() + _LEAD_S + phase.settings.warm_up_s
        for pipe in self._pipes:
            pipe.send(tally.begin)
        left = set(self._pipes)
        while left:
            for pipe in left.intersection(connection.wait(list(left), timeout=0.1)):
                batch: Batch = pipe.recv()
                tally.add(batch)
                if batch.usage is not None:
                    left.discard(pipe)
            yield

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.wait()


def _progress(tally: Tally) -> str:
    elapsed_s = now() - tally.begin
    if elapsed_s < 0:
        return "warming up"
    return f"{elapsed_s:.0f} s, {tally.right} right results, {tally.other} otherwise ended"


# Share of a core that a process can use; a busier process makes its calls late.
_BUSY = 0.8
# Accepted delay of calls: so many milliseconds, and such a part of the median.
_LATE_MS, _LATE_PART = 1.0, 0.1
# Right results needed for a meaningful 99th percentile.
_ENOUGH = 100


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


INTERVAL_S = 1.0
_ANSWER_S = 2.0
# Bytes shown of an endpoint's refusal.
_MOST_SAID = 1000
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


def read_usage(url: str, headers: dict[str, str], context: ssl.SSLContext | None) -> Usage:
    """Return the usage that a server's Prometheus endpoint reports.

    Raises PermissionDeniedError if it wants another token, OSError without a usable answer.

    context  of https; None for the system's authorities
    """
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=context) as answer:  # noqa: S310 - checked
            text = answer.read().decode(errors="replace")
    except HTTPError as error:
        kind = PermissionDeniedError if error.code in {401, 403} else OSError
        with error:
            said = error.read(_MOST_SAID).decode(errors="replace").strip()
        raise kind(f"--metrics {url}: {said or error}") from None
    except (HTTPException, OSError) as error:
        raise OSError(f"--metrics {url}: {error}") from None
    cpu_s, rss = ([*map(float, re.findall(pattern, text, re.MULTILINE))] for pattern in _SAMPLES)
    if not cpu_s:
        raise OSError(
            f"--metrics {url}: no processor time and memory is told there; give the /metrics of "
            "the server's --http-port"
        )
    return Usage(sum(cpu_s), sum(rss), len(cpu_s))


@contextmanager
def _sampling(probe: Probe | None) -> Generator[list[tuple[float, Usage]]]:
    """Yield a list that gets a sample each second, with its time."""
    samples: list[tuple[float, Usage]] = []
    over = threading.Event()

    def sample(probe: Probe) -> None:
        while True:
            with suppress(OSError, GradwireError):
                samples.append((now(), probe()))
            if over.wait(INTERVAL_S):
                return

    with ThreadPoolExecutor(1) as pool:
        if probe is not None:
            pool.submit(sample, probe)
        try:
            yield samples
        finally:
            over.set()


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
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
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
