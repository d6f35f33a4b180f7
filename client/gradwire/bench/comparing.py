"""What one load test has of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gradwire.bench.document import Document, FlowResult, LoadSettings

# How the figures of B are to be read.
TITLES = ("scenario", "flow", "right/s", "p50", "p99", "p99.9", "failed A", "failed B")


def comparison(
    first: Document, second: Document
) -> tuple[Sequence[str], list[tuple[str, ...]], list[str]]:
    """Return titles and rows of a table of the second's figures over the first's, and notes."""
    before, after = _flows(first), _flows(second)
    rows = [
        (*key, *_ratios(before[key], after[key]), _failed(before[key]), _failed(after[key]))
        for key in before
        if key in after
    ]
    notes = ["Ratios B / A; times are corrected for coordinated omission."]
    notes += [
        f"{name} was interrupted: its figures are those until then"
        for name, one in (("A", first), ("B", second))
        if one.interrupted
    ]
    notes += [f"{name} differs: {one} and {other}" for name, one, other in _odds(first, second)]
    for key in before.keys() ^ after.keys():
        where = "A" if key in before else "B"
        notes.append(f"{key[0]}, {key[1]} is in {where} only")
    return TITLES, rows, notes


def _flows(document: Document) -> dict[tuple[str, str], FlowResult]:
    return {
        (scenario.name, flow.name): flow
        for scenario in document.scenarios
        for flow in scenario.flows
    }


def _ratios(before: FlowResult, after: FlowResult) -> tuple[str, ...]:
    one, other = before.corrected, after.corrected
    pairs = (
        (before.calls_per_s, after.calls_per_s),
        (one.p50_ms, other.p50_ms),
        (one.p99_ms, other.p99_ms),
        (one.p999_ms, other.p999_ms),
    )
    # A time of 0 is that of no call.
    return tuple(f"{late / early:.2f}" if early and late else "-" for early, late in pairs)


def _failed(flow: FlowResult) -> str:
    return str(sum(outcome.count for outcome in flow.outcomes if not outcome.expected))


def _odds(first: Document, second: Document) -> list[tuple[str, str, str]]:
    """Return in what the two tests differ that makes their figures differ."""
    pairs: list[tuple[str, object, object]] = [
        ("processor", first.machine.cpu, second.machine.cpu),
        ("cores", first.machine.cores, second.machine.cores),
        ("backend", first.server.backend, second.server.backend),
        ("server's version", first.server.version, second.server.version),
        *(
            (field.name, getattr(first.settings, field.name), getattr(second.settings, field.name))
            for field in dataclasses.fields(LoadSettings)
        ),
    ]
    return [(name, str(one), str(other)) for name, one, other in pairs if one != other]
