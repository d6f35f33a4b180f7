"""Counts and latencies of a scenario, from the reports of the processes that make calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.loadtest.generator import OK, STOPPED, WRONG, Batch, Outcome
from gradwire.loadtest.result import FlowResult, GeneratorUsage, Latency, OutcomeResult, Second
from gradwire.loadtest.scenarios import Flow

Times = NDArray[np.float64]
# Second of the test to times of calls that ended in it right, in seconds.
_BySecond = dict[int, list[Times]]
# Seconds; a shorter interval would add times without end.
_LEAST_INTERVAL_S: Final = 1e-6
# Points of a curve beside each nine.
_BETWEEN: Final = 12
_MOST_NINES: Final = 5


class FlowTally:
    """Counts and times of the calls of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._from_due: list[Times] = []
        self._by_outcome: dict[Outcome, list[Times]] = defaultdict(list)
        self._made: Counter[int] = Counter()
        self._errors: Counter[int] = Counter()
        self._right: _BySecond = defaultdict(list)
        self.sent = 0
        self.ok = 0

    def add_made(self, seconds: NDArray[np.float64]) -> None:
        """Count calls made at these seconds of the test."""
        self.sent += len(seconds)
        self._made.update(np.floor(seconds).astype(int).tolist())

    def drop_made(self, seconds: NDArray[np.float64]) -> None:
        """Count calls no more that the user has stopped: they ended neither well nor badly."""
        self.sent -= len(seconds)
        self._made.subtract(np.floor(seconds).astype(int).tolist())

    def add_ended(self, outcome: Outcome, times: NDArray[np.float64]) -> None:
        """Count calls that ended so.

        times  float64[n, 3] of the test: due, made, over
        """
        due, made, over = times.T
        self._by_outcome[outcome].append(over - made)
        second = np.floor(over).astype(int)
        if outcome != OK:
            self._errors.update(second.tolist())
            return
        self.ok += len(times)
        self._from_due.append(over - due)
        since = over - (due if self._flow.is_open else made)
        for one in np.unique(second).tolist():
            self._right[one].append(since[second == one])

    def result(self, duration_s: float) -> FlowResult:
        """Return the result of the calls due within so many seconds."""
        flow, what = self._flow, self._flow.what
        uncorrected = _joined(self._by_outcome.get(OK, []))
        interval_s = None if flow.is_open else percentile(uncorrected, 50)
        times = (
            _joined(self._from_due) if interval_s is None else corrected(uncorrected, interval_s)
        )
        per_s = self.ok / duration_s
        call_bytes = flow.items * (what.sent_bytes + what.received_bytes)
        return FlowResult(
            name=flow.name,
            problem=flow.problem,
            manner=flow.manner,
            rate=flow.rate if flow.is_open else None,
            callers=None if flow.is_open else flow.callers,
            sent_bytes=flow.items * what.sent_bytes,
            received_bytes=flow.items * what.received_bytes,
            sent=self.sent,
            ok=self.ok,
            wrong=len(_joined(self._by_outcome.get(WRONG, []))),
            outcomes=self._outcomes(),
            calls_per_s=round(per_s, 3),
            megabytes_per_s=round(per_s * call_bytes / 1e6, 3),
            expected_interval_ms=None if interval_s is None else _ms(interval_s),
            corrected=_latency(times),
            uncorrected=_latency(uncorrected),
            seconds=self._seconds(),
        )

    def _outcomes(self) -> list[OutcomeResult]:
        return [
            OutcomeResult(
                status=outcome.status,
                reason=outcome.reason,
                retryable=outcome.retryable,
                expected=outcome == OK or outcome.status in self._flow.expected,
                count=len(times),
                p50_ms=_ms(percentile(times, 50)),
                p99_ms=_ms(percentile(times, 99)),
            )
            for outcome, times in sorted(
                ((outcome, _joined(parts)) for outcome, parts in self._by_outcome.items()),
                key=lambda item: (item[0] != OK, -len(item[1])),
            )
        ]

    def _seconds(self) -> list[Second]:
        known = {*self._made, *self._errors, *self._right}
        return [self._second(second) for second in range(max(known, default=-1) + 1)]

    def _second(self, second: int) -> Second:
        times = np.concatenate([*self._right.get(second, []), np.empty(0)]) * 1e3
        p50, p99 = np.percentile(times, (50, 99)).tolist() if len(times) else (0.0, 0.0)
        return Second(
            second=second,
            made=self._made[second],
            ok=len(times),
            errors=self._errors[second],
            p50_ms=round(p50, 3),
            p99_ms=round(p99, 3),
        )


class Silence:
    """Since when no server has answered any call."""

    def __init__(self) -> None:
        self._answered_s = -np.inf
        self._first_s = self._last_s = np.nan

    def add(self, batch: Batch, begin: float) -> None:
        """Take a report of a process; `begin` is the time from which calls count."""
        for (_, outcome), times in batch.ended.items():
            if not outcome.is_unanswered and outcome != STOPPED:
                self._answered_s = max(self._answered_s, float(times[:, 2].max()) - begin)
        # Reports arrive in any order: a failure may be older than an answer.
        if not self._first_s > self._answered_s:
            self._first_s = self._last_s = np.nan
        for (_, outcome), times in batch.ended.items():
            over = times[:, 2] - begin
            if outcome.is_unanswered and (over > self._answered_s).any():
                self._first_s = np.fmin(self._first_s, over[over > self._answered_s].min())
                self._last_s = np.fmax(self._last_s, over.max())

    def since_s(self, least_s: float) -> float | None:
        """Return the second since which calls, over `least_s` at least, met no server, if any."""
        return float(self._first_s) if self._last_s - self._first_s >= least_s else None


class Tally:
    """Counts and times of all calls of a scenario, and of their processes."""

    def __init__(self, flows: Sequence[Flow], *, begin: float, duration_s: float) -> None:
        self._flows = flows
        self._begin = begin
        self._duration_s = duration_s
        self._late: dict[int, list[Times]] = defaultdict(list)
        self._cpu: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.flows = [FlowTally(flow) for flow in flows]
        self.silence = Silence()

    def add(self, batch: Batch) -> None:
        """Count a report of a process."""
        self.silence.add(batch, self._begin)
        self._cpu[batch.number].append((batch.time, batch.cpu_s))
        for index, times in batch.made.items():
            self.flows[index].add_made(times[:, 1] - self._begin)
            if self._flows[index].is_open:
                self._late[batch.number].append(times[:, 1] - times[:, 0])
        for (index, outcome), times in batch.ended.items():
            if outcome == STOPPED:
                self.flows[index].drop_made(times[:, 1] - self._begin)
            else:
                self.flows[index].add_ended(outcome, times - self._begin)

    @property
    def wrong_or_failed(self) -> int:
        """Calls so far that did not bring a right result."""
        return sum(flow.sent - flow.ok for flow in self.flows)

    def generators(self) -> list[GeneratorUsage]:
        """Return the usage of the processes."""
        return [self._generator(number) for number in sorted(self._cpu)]

    def _generator(self, number: int) -> GeneratorUsage:
        end = self._begin + self._duration_s
        within = [one for one in self._cpu[number] if self._begin <= one[0] <= end]
        (first, cpu_before), (last, cpu_after) = (
            (within[0], within[-1]) if within else ((0, 0),) * 2
        )
        late = _joined(self._late[number])
        return GeneratorUsage(
            cpu_cores=round((cpu_after - cpu_before) / (last - first), 3) if last > first else 0.0,
            late_p50_ms=_ms(percentile(late, 50)),
            late_p99_ms=_ms(percentile(late, 99)),
            late_max_ms=_ms(percentile(late, 100)),
        )


def percentile(times: Times, percent: float) -> float:
    """Return the least time that so many percent do not exceed; 0 without times."""
    return float(np.percentile(times, percent, method="inverted_cdf")) if len(times) else 0.0


def corrected(times: Times, interval_s: float) -> Times:
    """Return times with those that callers at this interval would have met.

    A time t longer than the interval adds t - interval, t - 2 intervals and so on, down to the
    interval (HdrHistogram's copyCorrectedForCoordinatedOmission).
    """
    if interval_s < _LEAST_INTERVAL_S:
        return times
    # Rounding must not lose the last one, which is the interval itself.
    added = np.maximum(np.floor(times / interval_s + 1e-6).astype(np.int64) - 1, 0)
    firsts = np.repeat(np.cumsum(added) - added, added)
    steps = np.arange(1, len(firsts) + 1) - firsts
    return np.concatenate([times, np.repeat(times, added) - steps * interval_s])


def nines(count: int) -> int:
    """Return how many nines of a percentile so many calls determine."""
    return max(1, min(_MOST_NINES, len(str(count)) - 1))


def _joined(parts: Sequence[Times]) -> Times:
    return np.concatenate([np.empty(0), *parts])


def _latency(times: Times) -> Latency:
    p50, p90, p99, p999, most = (
        _ms(percentile(times, percent)) for percent in (50, 90, 99, 99.9, 100)
    )
    return Latency(
        count=len(times),
        mean_ms=_ms(float(times.mean()) if len(times) else 0.0),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=most,
        curve=_curve(times),
    )


def _curve(times: Times) -> list[list[float]]:
    if not len(times):
        return []
    exponents = np.arange(nines(len(times)) * _BETWEEN + 1) / _BETWEEN
    percents = 100 * (1 - 10.0**-exponents)
    values = np.percentile(times, percents, method="inverted_cdf") * 1e3
    curve: list[list[float]] = np.column_stack([percents, values]).round(6).tolist()
    return curve


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
