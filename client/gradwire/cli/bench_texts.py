"""What `gradwire bench` prints of a scenario."""

from __future__ import annotations

from gradwire.bench.document import FlowResult, OutcomeResult, ScenarioResult
from gradwire.cli.texts import table

_TITLES = ("", "loop", "right/s", "MB/s", "p50 ms", "p99 ms", "p99.9", "max", "uncorrected p99")


def told(result: ScenarioResult) -> list[str]:
    """Describe a scenario in lines."""
    rows = [_row(flow) for flow in result.flows]
    lines = [f"{result.name}: {result.summary}", *table(_TITLES, rows, last_to_left=False)]
    for flow in result.flows:
        lines += [
            _end(flow, outcome)
            for outcome in flow.outcomes
            if (outcome.status, outcome.reason) != ("OK", "")
        ]
    lines += [f"  note: {warning}" for warning in result.warnings]
    return [*lines, ""]


def _row(flow: FlowResult) -> tuple[str, ...]:
    corrected = flow.corrected
    times = (corrected.p50_ms, corrected.p99_ms, corrected.p999_ms, corrected.max_ms)
    return (
        flow.name,
        f"{flow.callers} callers" if flow.rate is None else f"{flow.rate:.4g}/s",
        f"{flow.calls_per_s:.1f}",
        f"{flow.megabytes_per_s:.1f}",
        *(f"{time:.2f}" if flow.ok else "-" for time in (*times, flow.uncorrected.p99_ms)),
    )


def _end(flow: FlowResult, outcome: OutcomeResult) -> str:
    kind = " ".join(filter(None, (outcome.status, outcome.reason)))
    mark = "" if outcome.expected else "  FAILED"
    return (
        f"  {flow.name}: {outcome.count} of {flow.sent} {kind}, p50 {outcome.p50_ms:.2f} ms{mark}"
    )
