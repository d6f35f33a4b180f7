"""Processes that make calls, and the run of scenarios on them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Final, Self

from gradwire.loadtest import generator
from gradwire.loadtest.generator import Batch, Connect, Phase, now
from gradwire.loadtest.result import FlowResult, GeneratorUsage, ScenarioResult, ServerSecond
from gradwire.loadtest.sampling import Probe, ProcessSampler
from gradwire.loadtest.scenarios import Flow, Scenario
from gradwire.loadtest.tally import Tally

# Seconds from the last order to the first call.
_LEAD_S: Final = 0.05
# Seconds that calls have to end which the user has stopped, and processes to end.
_ENDING_S: Final = 5.0


class FleetError(RuntimeError):
    """A process ended that should not have."""


class Fleet:
    """Processes that make calls, started by spawn and ended with the block."""

    def __init__(self, connect: Connect, *, processes: int, connections: int) -> None:
        self._connections = connections
        self._pipes: list[Pipe] = []
        self._processes: list[SpawnProcess] = []
        # It unblocks signals once it runs.
        resource_tracker.ensure_running()
        try:
            for _ in range(processes):
                with _undisturbed():
                    self._start(connect)
        except BaseException:
            self._end()
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
        """The processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(
        self,
        flows: Sequence[Flow],
        *,
        warm_up_s: float,
        duration_s: float,
        timeout_s: float,
        on_begin: Callable[[float], None],
        on_batch: Callable[[Batch], None],
        on_tick: Callable[[], None],
    ) -> KeyboardInterrupt | None:
        """Run a phase in all processes; return what ended it before its end, if anything did.

        on_begin  called before the first call, with the time from which on calls count
        on_batch  called with each report of a process
        on_tick   called some times a second

        Calls in flight when the user ends it are reported as stopped.
        """
        for number, pipe in enumerate(self._pipes):
            phase = Phase(
                flows=tuple(flows),
                warm_up_s=warm_up_s,
                duration_s=duration_s,
                timeout_s=timeout_s,
                connections=self._connections,
                number=number,
                processes=len(self._pipes),
            )
            pipe.send(phase)
        try:
            for pipe in self._pipes:
                # READY; there is no hurry any more.
                _received(pipe)
            begin = now() + _LEAD_S + warm_up_s
            on_begin(begin)
            for pipe in self._pipes:
                pipe.send(begin)
            self._collect(on_batch, on_tick, until=float("inf"))
        except KeyboardInterrupt as error:
            for pipe in self._pipes:
                with suppress(BrokenPipeError):
                    pipe.send(None)
            self._collect(on_batch, on_tick, until=now() + _ENDING_S)
            return error
        return None

    def _collect(
        self, on_batch: Callable[[Batch], None], on_tick: Callable[[], None], *, until: float
    ) -> None:
        left = set(self._pipes)
        while left and now() < until:
            ready = wait(list(left), timeout=0.1)
            for pipe in [pipe for pipe in left if pipe in ready]:
                batch = _received(pipe)
                if not isinstance(batch, Batch):
                    continue
                on_batch(batch)
                if batch.over:
                    left.discard(pipe)
            on_tick()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
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
    """Defer signals that end the program until the block ends, and hide them from its processes.

    They inherit the blocked signals, so that a signal to the group does not end them before they
    can ignore it. Other threads of this process may take it; a handler then only notes it.
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


# Seconds in which the rate is found that an overload is a multiple of.
PEAK_S: Final = 4.0
# Of a core that a process can use; one that is busier is late with its calls.
_BUSY: Final = 0.8
# How late calls may be made: so many milliseconds, and such a part of the median.
_LATE_MS, _LATE_PART = 1.0, 0.1
# Right results of which a 99th percentile says something.
_ENOUGH: Final = 100
# Seconds in which calls met no server, after which there is none; half of a shorter scenario.
_SILENT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of each scenario, in seconds; timeout_s is the limit of a call."""

    duration_s: float
    warm_up_s: float
    timeout_s: float


class Runner:
    """Runs scenarios on a fleet.

    probe  looks at the server; None where it cannot be seen
    cores  of this machine where the server is on it too; None for one elsewhere
    show   called some times a second with a line for the impatient

    interrupted   what ended what ran last before its time; None where nothing did
    silent_since  second of what ran last since which no server has answered; None where one did
    """

    def __init__(
        self,
        fleet: Fleet,
        pace: Pace,
        *,
        probe: Probe | None,
        cores: int | None,
        show: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._pace = pace
        self._probe = probe
        self._cores = cores
        self._show = show
        self.interrupted: KeyboardInterrupt | None = None
        self.silent_since: float | None = None

    def run(self, scenario: Scenario) -> ScenarioResult:
        """Run one; return its result so far if the user ends it."""
        peak = None
        if scenario.of_peak:
            peak = self._peak(scenario)
            flow = replace(scenario.flows[0], callers=0, rate=max(1.0, scenario.of_peak * peak))
            scenario = replace(scenario, flows=(flow, *scenario.flows[1:]), of_peak=0.0)
        duration_s = self._pace.duration_s
        if self.interrupted is not None or self.silent_since is not None:
            tally, seconds = _nothing(scenario, duration_s)
        else:
            tally, seconds, duration_s = self._measured(scenario, duration_s, self._pace.warm_up_s)
        flows = [flow.result(duration_s) for flow in tally.flows]
        generators = tally.generators()
        return ScenarioResult(
            name=scenario.name,
            summary=scenario.summary,
            duration_s=round(duration_s, 3),
            peak_per_s=None if peak is None else round(peak, 3),
            flows=flows,
            server=seconds,
            generators=generators,
            warnings=[
                *([] if self.silent_since is None else [silence(self.silent_since)]),
                *warnings(flows, generators, seconds, cores=self._cores),
            ],
        )

    def _peak(self, scenario: Scenario) -> float:
        """Return how many right results per second its first flow has in a closed loop."""
        alone = replace(scenario, name=f"{scenario.name}: peak", flows=scenario.flows[:1])
        span_s = min(PEAK_S, self._pace.duration_s)
        tally, _, span_s = self._measured(alone, span_s, self._pace.warm_up_s)
        return tally.flows[0].ok / span_s

    def _measured(
        self, scenario: Scenario, duration_s: float, warm_up_s: float
    ) -> tuple[Tally, list[ServerSecond], float]:
        """Run flows; return their tally, the server's usage, and the real duration."""
        # Where the user ends it before it begins, nothing became of it.
        begin = now()
        tally = Tally(scenario.flows, begin=begin, duration_s=duration_s)
        silent_s = min(_SILENT_S, duration_s / 2)

        def start(at: float) -> None:
            nonlocal tally, begin
            begin = at
            tally = Tally(scenario.flows, begin=begin, duration_s=duration_s)

        def take(batch: Batch) -> None:
            tally.add(batch)

        def tick() -> None:
            self._show(_line(scenario.name, now() - begin, duration_s, tally, silent_s=silent_s))

        with ProcessSampler(self._probe) as sampler:
            self.interrupted = self._fleet.run(
                scenario.flows,
                warm_up_s=warm_up_s,
                duration_s=duration_s,
                timeout_s=self._pace.timeout_s,
                on_begin=start,
                on_batch=take,
                on_tick=tick,
            )
        self.silent_since = tally.silence.since_s(silent_s)
        if self.interrupted is not None:
            duration_s = min(duration_s, max(0.001, now() - begin))
        return tally, sampler.seconds(begin), duration_s


def silence(since_s: float) -> str:
    """Say since which second of a scenario no server has answered."""
    return f"no server answers since second {since_s:.0f}"


def warnings(
    flows: Sequence[FlowResult],
    generators: Sequence[GeneratorUsage],
    seconds: Sequence[ServerSecond],
    *,
    cores: int | None,
) -> list[str]:
    """Say why figures may be worth less than they look."""
    told: list[str] = []
    busiest = max((one.cpu_cores for one in generators), default=0.0)
    if busiest >= _BUSY:
        told.append(
            f"a process that makes calls was busy for {busiest:.2f} of one core: it may be the "
            "bottleneck, not the server; give more --processes, or another machine"
        )
    late = max((one.late_p99_ms for one in generators), default=0.0)
    p50 = min((flow.corrected.p50_ms for flow in flows if flow.rate and flow.ok), default=0.0)
    if late > max(_LATE_MS, _LATE_PART * p50):
        told.append(
            f"1 % of the calls of open loops were made {late:.1f} ms or more after they were due; "
            "corrected latencies hold that time, uncorrected ones do not"
        )
    taken = sum(one.cpu_cores for one in generators)
    if seconds:
        taken += sum(one.cpu_cores for one in seconds) / len(seconds)
    if cores is not None and seconds and taken >= 0.9 * cores:
        told.append(
            f"the server and the processes that call it took {taken:.1f} of the {cores} cores that "
            "they share: a server with its machine to itself does better"
        )
    told += [
        f"{flow.name}: percentiles are those of {flow.ok} calls only"
        for flow in flows
        if 0 < flow.ok < _ENOUGH
    ]
    return told


def failures(scenario: ScenarioResult) -> int:
    """Return how many calls ended in a way that the scenario is not about."""
    return sum(
        outcome.count
        for flow in scenario.flows
        for outcome in flow.outcomes
        if not outcome.expected
    )


def _nothing(scenario: Scenario, duration_s: float) -> tuple[Tally, list[ServerSecond]]:
    return Tally(scenario.flows, begin=now(), duration_s=duration_s), []


def _line(name: str, elapsed_s: float, duration_s: float, tally: Tally, *, silent_s: float) -> str:
    if elapsed_s < 0:
        return f"{name}: warming up"
    since_s = tally.silence.since_s(silent_s)
    if since_s is not None:
        return f"{name}: {elapsed_s:.0f} of {duration_s:.0f} s, {silence(since_s)}"
    ok, bad = sum(flow.ok for flow in tally.flows), tally.wrong_or_failed
    part = min(elapsed_s, duration_s)
    return (
        f"{name}: {part:.0f} of {duration_s:.0f} s, {ok / max(part, 0.1):.0f} right results/s, "
        f"{bad} calls open or otherwise ended"
    )
