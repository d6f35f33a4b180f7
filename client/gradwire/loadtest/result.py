"""Result of a load test: the schema of its JSON, and the comparison of two.

Every class is an object whose keys are its fields; docs/load-testing.md describes them.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

# Raised with every change of the schema.
FORMAT: Final = "gradwire-bench/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the calls were made.

    load  average of the last minute when the test began
    """

    cpu: str
    cores: int
    memory_mib: int
    system: str
    python: str
    versions: dict[str, str]
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server; the last four fields are empty if it did not report them.

    own  whether the test had started it, on the same machine
    """

    target: str
    own: bool
    version: str
    numerics_version: str
    backend: str
    backend_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings of a load test; None for defaults of the scenarios."""

    duration_s: float
    warm_up_s: float
    timeout_s: float
    rate: float | None
    callers: int | None
    connections: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What happened within one second from the beginning: calls made, right, ended otherwise.

    p50_ms, p99_ms  corrected where the loop is open; of calls that ended right in it, 0 for none
    """

    second: int
    made: int
    ok: int
    errors: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """Calls of one kind.

    manner       plain, cancelled, hurried, slow or many
    rate         calls per second that were due; None in a closed loop
    callers      of a closed loop; None in an open one
    sent_bytes, received_bytes
                 tensor bytes of one call
    sent         calls made, without those that the user stopped: the sum of the outcomes
    ok, wrong    those whose result was right, and wrong
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSecond:
    """Usage of the server's processes: busy cores on average, resident memory."""

    second: float
    cpu_cores: float
    rss_mib: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorUsage:
    """One process that made calls.

    cpu_cores  that it kept busy on average; 1 is all that it can
    late_*     how long after they were due calls of open loops were made
    """

    cpu_cores: float
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """One scenario.

    peak_per_s  right results per second of a closed loop, of which an overload is a multiple; None
                where none was sought
    warnings    why its figures may be worth less than they look
    """

    name: str
    summary: str
    duration_s: float
    peak_per_s: float | None
    flows: list[FlowResult]
    server: list[ServerSecond]
    generators: list[GeneratorUsage]
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
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


class SchemaError(ValueError):
    """A file that is not what `gradwire bench` writes."""


def to_json(document: Document) -> str:
    """Write a document."""
    return json.dumps(dataclasses.asdict(document), indent=1) + "\n"


def from_json(text: str) -> Document:
    """Read a document; raise SchemaError for anything else."""
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"it is no JSON: {error}") from None
    except RecursionError:
        raise SchemaError("it is JSON with too many brackets") from None
    if not isinstance(value, dict):
        raise SchemaError(f"it is JSON of another kind: {value!r:.40}")
    told = cast("dict[str, Any]", value).get("format")
    if told is None:
        keys = ", ".join(sorted(cast("dict[str, Any]", value)))
        raise SchemaError(f'it is JSON without a "format"; its keys are: {keys or "none":.60}')
    if told != FORMAT:
        raise SchemaError(f"its format is {told!r:.40}; this version reads {FORMAT!r}")
    try:
        document: Document = _read(Document, value)
    except KeyError as error:
        raise SchemaError(f"its key {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise SchemaError(f"a value is of another type: {error}") from None
    return document


def _read(kind: Any, value: Any) -> Any:
    """Return objects as dataclasses, and all else as JSON has it."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return cast("Any", kind)(**{name: _read(hint, value[name]) for name, hint in hints.items()})
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return [_read(item, one) for one in value]
    return value


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
    """Return differences between the tests that affect their figures."""
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
