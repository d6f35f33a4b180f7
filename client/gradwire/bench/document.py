"""What a load test found: the schema of the JSON that `gradwire bench` writes and compares.

Every class is an object whose keys are its fields, and docs/load-testing.md tells the same. A file
is read strictly: a key too many or too few, or a value of another type, is an error that names it.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Final, cast

# Raised with every change of the schema.
FORMAT: Final = "gradwire-bench/1"


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
    """Who answered; the last four are empty where the server did not tell.

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
    """How it was asked for; None for what was left to the scenarios."""

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

    histogram  microseconds, as HdrHistogram's compressed V2 encoding in base64
    """

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    histogram: str


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
    sent         calls made, but those that the user stopped: as many as the outcomes together
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
    """What the server's processes took: cores busy on average, resident memory of all of them."""

    second: float
    cpu_cores: float
    rss_mib: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
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
    generators: list[Generator]
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
    """Read a document; raise SchemaError where it is none."""
    try:
        value = json.loads(text)
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
    document: Document = _read(Document, value, "document")
    return document


def _read(kind: Any, value: Any, path: str) -> Any:
    """Return a value as its type says; in JSON a whole number may stand for any."""
    arguments = typing.get_args(kind)
    match typing.get_origin(kind) or kind:
        case types.UnionType:
            read = None if value is None else _read(arguments[0], value, path)
        case builtins.list:
            items = _expect(list, value, path)
            read = [_read(arguments[0], item, f"{path}[{at}]") for at, item in enumerate(items)]
        case builtins.dict:
            entries = _expect(dict, value, path).items()
            read = {key: _read(arguments[1], one, f"{path}.{key}") for key, one in entries}
        case builtins.float:
            read = _float(value, path)
        case _ if dataclasses.is_dataclass(kind):
            read = _object(kind, _expect(dict, value, path), path)
        case _:
            read = _expect(kind, value, path)
    return read


def _float(value: Any, path: str) -> float:
    try:
        return float(_expect(int if type(value) is int else float, value, path))
    except OverflowError:
        raise SchemaError(f"{path} is a number beyond those of float64") from None


def _object(kind: Any, value: dict[str, Any], path: str) -> Any:
    hints = typing.get_type_hints(kind)
    if odd := sorted(hints.keys() ^ value.keys()):
        what = "is missing" if odd[0] in hints else "is no key of this schema"
        raise SchemaError(f"{path}.{odd[0]} {what}")
    return kind(
        **{name: _read(hint, value[name], f"{path}.{name}") for name, hint in hints.items()}
    )


def _expect(kind: Any, value: Any, path: str) -> Any:
    if type(value) is not kind:
        raise SchemaError(f"{path} is {value!r:.40}; {kind.__name__} is wanted")
    return value
