"""Result of a load test: its JSON schema, and comparisons.

Every class is an object whose keys are its fields; docs/load-testing.md describes them.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwire.loadtest.generator import (
    OK,
    WRONG,
    Batch,
    GeneratorUsage,
    LoadSettings,
    Outcome,
    Phase,
    now,
    percentile,
    percentiles_ms,
)
from gradwire.loadtest.scenarios import Flow
from gradwire.tensors import Array

# Increased with every change of the schema.
FORMAT = "gradwire-bench/2"


@dataclass(frozen=True)
class Machine:
    """Machine that made the calls.

    load  average of the last minute when the test began
    """

    cpu: str
    cores: int
    memory_mib: int
    system: str
    python: str
    versions: dict[str, str]
    load: float


@dataclass(frozen=True)
class ServerFacts:
    """Facts about the server.

    The last four fields are empty if the server did not report them.

    own  whether the test had started it, on the same machine
    """

    target: str
    own: bool
    version: str = ""
    numerics_version: str = ""
    backend: str = ""
    backend_reason: str = ""


@dataclass(frozen=True)
class Latency:
    """Times of calls that brought a right result, in milliseconds.

    curve  percentiles and their times: [percent, milliseconds], as far as there are calls
    """

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    curve: list[list[float]]


@dataclass(frozen=True)
class OutcomeResult:
    """Calls that ended alike, and their times, uncorrected.

    status    of gRPC; WRONG_RESULT for wrong bits
    reason    of gradwire's error, or BY_CALLER for calls that the scenario cancels
    expected  whether the scenario is about such ends
    """

    status: str
    reason: str
    retryable: bool
    expected: bool
    count: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Second:
    """Calls made, ended right and ended otherwise within one second.

    Seconds count from the beginning.

    p50_ms, p99_ms  corrected where the loop is open; of calls that ended right in it, 0 for none
    """

    second: int
    made: int
    ok: int
    errors: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class FlowResult:
    """Calls of one kind.

    manner       plain, cancelled, hurried or slow
    rate         calls per second that were due; None in a closed loop
    callers      of a closed loop; None in an open one
    sent_bytes, received_bytes
                 tensor bytes of one call
    sent         calls made, except calls in flight when the user ended the test: the sum of the
                 outcomes
    ok, wrong    calls whose result was right, and wrong
    calls_per_s, megabytes_per_s
                 of right results; bytes of both directions
    expected_interval_ms
                 by which a closed loop is corrected, its median; None in an open one
    corrected    for coordinated omission: in an open loop from when a call was due, in a closed one
                 by HdrHistogram with the expected interval
    uncorrected  from when a call was made
    """

    name: str
    problem: str
    manner: str
    rate: float | None
    callers: int | None
    sent_bytes: int
    received_bytes: int
    sent: int
    ok: int
    wrong: int
    outcomes: list[OutcomeResult]
    calls_per_s: float
    megabytes_per_s: float
    expected_interval_ms: float | None
    corrected: Latency
    uncorrected: Latency
    seconds: list[Second]


@dataclass(frozen=True)
class ServerSecond:
    """Usage of the server's processes in one second.

    It is the average of busy cores, and the resident memory.
    """

    second: float
    cpu_cores: float
    rss_mib: float
    processes: int


@dataclass(frozen=True)
class ScenarioResult:
    """One scenario.

    peak_per_s  right results per second of a closed loop, of which an overload is a multiple; None
                if none was measured
    warnings    reasons for doubt about the figures
    """

    name: str
    summary: str
    duration_s: float
    peak_per_s: float | None
    flows: list[FlowResult]
    server: list[ServerSecond]
    generators: list[GeneratorUsage]
    warnings: list[str]


@dataclass(frozen=True)
class Document:
    """A load test.

    when         it began, in ISO 8601
    interrupted  whether the user ended it early
    """

    format: str
    when: str
    command: str
    interrupted: bool
    machine: Machine
    server: ServerFacts
    settings: LoadSettings
    scenarios: list[ScenarioResult]


def to_json(document: Document) -> str:
    """Write a document."""
    return json.dumps(dataclasses.asdict(document), indent=1) + "\n"


def from_json(text: str) -> Any:
    """Read a document; raise ValueError for any other text.

    It is made of objects with the fields of the documents' classes.
    """
    try:
        document = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    told = getattr(document, "format", None)
    if told != FORMAT:
        raise ValueError(f"its format is {told!r:.40}; this version reads {FORMAT!r}")
    return document


# Titles of a comparison's columns; figures are those of B over those of A.
TITLES = ("scenario", "flow", "right/s", "p50", "p99", "p99.9", "failed A", "failed B")
# Facts besides the settings that affect a test's figures.
_CIRCUMSTANCES = ("machine.cpu", "machine.cores", "server.backend", "server.version")


def comparison(before: Any, after: Any) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return ratios of the second document to the first, and notes.

    The ratios are rows under TITLES.
    """
    first, second = (
        {(scenario.name, flow.name): flow for scenario in one.scenarios for flow in scenario.flows}
        for one in (before, after)
    )
    rows = [
        (*key, *_ratios(flow, second[key]), str(failed(flow)), str(failed(second[key])))
        for key, flow in first.items()
        if key in second
    ]
    settings = [f"settings.{one.name}" for one in dataclasses.fields(LoadSettings)]
    notes = ["Ratios B / A; times are corrected for coordinated omission."]
    for path in (*_CIRCUMSTANCES, *settings):
        one, other = map(attrgetter(path), (before, after))
        if one != other:
            notes.append(f"{path} differs: {one} and {other}")
    notes += [
        f"{scenario}, {flow} is in {'A' if (scenario, flow) in first else 'B'} only"
        for scenario, flow in first.keys() ^ second.keys()
    ]
    return rows, notes


def _ratios(before: Any, after: Any) -> Iterator[str]:
    for path in ("calls_per_s", "corrected.p50_ms", "corrected.p99_ms", "corrected.p999_ms"):
        early, late = map(attrgetter(path), (before, after))
        # A time of 0 means that there were no calls.
        yield f"{late / early:.2f}" if early and late else "-"


def failed(flow: Any) -> int:
    """Return the number of calls with an unexpected outcome."""
    return sum(outcome.count for outcome in flow.outcomes if not outcome.expected)


def failures(scenario: ScenarioResult) -> int:
    """Return the number of calls with an unexpected outcome in all flows."""
    return sum(map(failed, scenario.flows))


# Seconds; a shorter interval would add too many times.
_LEAST_INTERVAL_S = 1e-6
# Points of a curve beside each nine.
_BETWEEN = 12
_MOST_NINES = 5


class Tally:
    """Times of a scenario's calls, and usage of their processes.

    begin       when calls begin to count
    duration_s  how long calls are due
    right       calls so far whose results were right
    other       calls so far that ended otherwise
    generators  usage of the processes that have ended
    """

    def __init__(self, phase: Phase) -> None:
        self._flows = phase.flows
        self.begin = now()
        self.duration_s = phase.settings.duration_s
        self._ended: dict[tuple[int, Outcome], list[Array]] = defaultdict(list)
        self.generators: list[GeneratorUsage] = []
        self.right = self.other = 0

    def add(self, batch: Batch) -> None:
        """Count a process's report."""
        if batch.usage is not None:
            self.generators.append(batch.usage)
        for key, times in batch.ended.items():
            self._ended[key].append(times)
            if key[1] == OK:
                self.right += len(times)
            else:
                self.other += len(times)

    def results(self) -> list[FlowResult]:
        """Return the results of the flows."""
        ended = {key: np.concatenate(times) - self.begin for key, times in self._ended.items()}
        return [
            self._result(flow, {key[1]: times for key, times in ended.items() if key[0] == index})
            for index, flow in enumerate(self._flows)
        ]

    def _result(self, flow: Flow, ends: dict[Outcome, Array]) -> FlowResult:
        right = ends.get(OK, np.empty((0, 3)))
        due, made, over = right.T
        uncorrected = over - made
        latencies = over - due if flow.is_open else uncorrected
        interval_s = None if flow.is_open else percentile(uncorrected, 50)
        times = latencies if interval_s is None else corrected(uncorrected, interval_s)
        per_s = len(right) / self.duration_s
        sent_bytes, received_bytes = flow.what.sent_bytes, flow.what.received_bytes
        return FlowResult(
            name=flow.name,
            problem=flow.problem,
            manner=flow.manner,
            rate=flow.rate or None,
            callers=flow.callers or None,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            sent=sum(map(len, ends.values())),
            ok=len(right),
            wrong=len(ends.get(WRONG, ())),
            outcomes=_outcomes(flow, ends),
            calls_per_s=round(per_s, 3),
            megabytes_per_s=round(per_s * (sent_bytes + received_bytes) / 1e6, 3),
            expected_interval_ms=None if interval_s is None else round(interval_s * 1e3, 3),
            corrected=_latency(times),
            uncorrected=_latency(uncorrected),
            seconds=_seconds(ends, right, latencies),
        )


def corrected(times: Array, interval_s: float) -> Array:
    """Return times with omitted ones of callers at this interval.

    A time t longer than the interval adds t - interval, t - 2 intervals and so on, down to the
    interval (HdrHistogram's copyCorrectedForCoordinatedOmission).
    """
    if interval_s < _LEAST_INTERVAL_S:
        return times
    # Rounding must not lose the last added time, which is the interval itself.
    last = interval_s * (1 - 1e-6)
    added = [np.arange(time - interval_s, last, -interval_s) for time in times[times > interval_s]]
    return np.concatenate([times, *added])


def nines(count: int) -> int:
    """Return the number of nines of a percentile that a count determines."""
    return max(1, min(_MOST_NINES, len(str(count)) - 1))


def _outcomes(flow: Flow, ends: dict[Outcome, Array]) -> list[OutcomeResult]:
    """Return right results first, then other outcomes, most frequent first."""
    return [
        OutcomeResult(
            *outcome,
            outcome == OK or outcome.status in flow.expected,
            len(ended),
            *percentiles_ms(ended[:, 2] - ended[:, 1], 50, 99),
        )
        for outcome, ended in sorted(ends.items(), key=lambda end: (end[0] != OK, -len(end[1])))
    ]


def _seconds(ends: dict[Outcome, Array], right: Array, latencies: Array) -> list[Second]:
    """Return each second in which a call was made or ended.

    Seconds run from the first to the last one, including empty ones.
    """
    every = np.concatenate([np.empty((0, 3)), *ends.values()]).astype(int)
    within = right[:, 2].astype(int)
    seconds: list[Second] = []
    for second in range(every.max(initial=-1) + 1):
        _, made, over = (every == second).sum(axis=0).tolist()
        times = latencies[within == second]
        errors = over - len(times)
        seconds.append(Second(second, made, len(times), errors, *percentiles_ms(times, 50, 99)))
    return seconds


def _latency(times: Array) -> Latency:
    """Return percentiles and their curve.

    Every nine of a percentile has the same number of points on the curve.
    """
    exponents = np.arange(nines(len(times)) * _BETWEEN + 1 if len(times) else 0) / _BETWEEN
    percents = 100 * (1 - 10.0**-exponents)
    curve = [[round(float(one), 6), *percentiles_ms(times, one)] for one in percents]
    mean_ms = round(float(times.sum()) / max(1, len(times)) * 1e3, 3)
    p50, p90, p99, p999, most = percentiles_ms(times, 50, 90, 99, 99.9, 100)
    return Latency(len(times), mean_ms, p50, p90, p99, p999, most, curve)
