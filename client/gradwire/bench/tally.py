"""From what processes tell to the result of a scenario."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.bench.calls import OK, STOPPED, WRONG, Outcome
from gradwire.bench.document import FlowResult, Generator, Latency, OutcomeResult, Second
from gradwire.bench.generator import Batch
from gradwire.bench.histogram import Histogram
from gradwire.bench.scenarios import Flow

# Second of the test to times of calls that ended in it right, in seconds.
_BySecond = dict[int, list[NDArray[np.float64]]]
_US: Final = 1e6


class FlowTally:
    """What became of the calls of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._from_due = Histogram()
        self._by_outcome: dict[Outcome, Histogram] = defaultdict(Histogram)
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
        self._by_outcome[outcome].record((over - made) * _US)
        second = np.floor(over).astype(int)
        if outcome != OK:
            self._errors.update(second.tolist())
            return
        self.ok += len(times)
        self._from_due.record((over - due) * _US)
        since = over - (due if self._flow.is_open else made)
        for one in np.unique(second).tolist():
            self._right[one].append(since[second == one])

    def result(self, duration_s: float) -> FlowResult:
        """Return what the calls due within so many seconds came to."""
        flow, what = self._flow, self._flow.what
        uncorrected = self._by_outcome.get(OK, Histogram())
        interval_us = None if flow.is_open else uncorrected.percentile(50)
        corrected = self._from_due if interval_us is None else uncorrected.corrected(interval_us)
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
            wrong=self._by_outcome[WRONG].total if WRONG in self._by_outcome else 0,
            outcomes=self._outcomes(),
            calls_per_s=round(per_s, 3),
            megabytes_per_s=round(per_s * call_bytes / 1e6, 3),
            expected_interval_ms=None if interval_us is None else _ms(interval_us),
            corrected=_latency(corrected),
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
                count=histogram.total,
                p50_ms=_ms(histogram.percentile(50)),
                p99_ms=_ms(histogram.percentile(99)),
            )
            for outcome, histogram in sorted(
                self._by_outcome.items(), key=lambda item: (item[0] != OK, -item[1].total)
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
        """Take what a process tells; `begin` is when calls begin to count."""
        for (_, outcome), times in batch.ended.items():
            if not outcome.is_unanswered and outcome != STOPPED:
                self._answered_s = max(self._answered_s, float(times[:, 2].max()) - begin)
        # Processes tell in any order: what one heard of no server may be older than an answer.
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
    """What became of all calls of a scenario, and of the processes that made them."""

    def __init__(self, flows: Sequence[Flow], *, begin: float, duration_s: float) -> None:
        self._flows = flows
        self._begin = begin
        self._duration_s = duration_s
        self._late: dict[int, Histogram] = defaultdict(Histogram)
        self._cpu: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.flows = [FlowTally(flow) for flow in flows]
        self.silence = Silence()

    def add(self, batch: Batch) -> None:
        """Count what a process tells."""
        self.silence.add(batch, self._begin)
        self._cpu[batch.number].append((batch.time, batch.cpu_s))
        for index, times in batch.made.items():
            self.flows[index].add_made(times[:, 1] - self._begin)
            if self._flows[index].is_open:
                self._late[batch.number].record((times[:, 1] - times[:, 0]) * _US)
        for (index, outcome), times in batch.ended.items():
            if outcome == STOPPED:
                self.flows[index].drop_made(times[:, 1] - self._begin)
            else:
                self.flows[index].add_ended(outcome, times - self._begin)

    @property
    def wrong_or_failed(self) -> int:
        """Calls so far that did not bring a right result."""
        return sum(flow.sent - flow.ok for flow in self.flows)

    def generators(self) -> list[Generator]:
        """Return how the processes did."""
        return [self._generator(number) for number in sorted(self._cpu)]

    def _generator(self, number: int) -> Generator:
        end = self._begin + self._duration_s
        within = [one for one in self._cpu[number] if self._begin <= one[0] <= end]
        (first, cpu_before), (last, cpu_after) = (
            (within[0], within[-1]) if within else ((0, 0),) * 2
        )
        late = self._late[number]
        return Generator(
            cpu_cores=round((cpu_after - cpu_before) / (last - first), 3) if last > first else 0.0,
            late_p50_ms=_ms(late.percentile(50)),
            late_p99_ms=_ms(late.percentile(99)),
            late_max_ms=_ms(late.percentile(100)),
        )


def _latency(histogram: Histogram) -> Latency:
    p50, p90, p99, p999, most = (
        _ms(histogram.percentile(percent)) for percent in (50, 90, 99, 99.9, 100)
    )
    return Latency(
        count=histogram.total,
        mean_ms=_ms(histogram.mean_us),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=most,
        histogram=histogram.encode(),
    )


def _ms(microseconds: float) -> float:
    return round(microseconds / 1e3, 3)
