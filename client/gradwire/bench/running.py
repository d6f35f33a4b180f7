"""Runs scenarios one after the other, and says what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradwire.bench.calls import now
from gradwire.bench.document import FlowResult, Generator, ScenarioResult, ServerSecond
from gradwire.bench.fleet import Fleet
from gradwire.bench.generator import Batch
from gradwire.bench.sampling import Probe, ProcessSampler
from gradwire.bench.scenarios import Scenario
from gradwire.bench.tally import Tally

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
    """How long each scenario takes, in seconds; timeout_s is what one of its calls may."""

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
        """Run one; what it got to, where the user ends it."""
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
        """Run flows; return what became of them, what the server took, how long it really was."""
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
    generators: Sequence[Generator],
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
