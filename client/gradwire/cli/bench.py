"""`gradwire bench`: puts a server under load, and reports."""

from __future__ import annotations

import datetime as dt
import os
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import click

from gradwire.cli import exits
from gradwire.cli.connection import Connection, local_process
from gradwire.cli.exits import INVALID, CommandError
from gradwire.cli.options import (
    CALLS_PER_S,
    INPUT_FILE,
    OUTPUT_FILE,
    SECONDS,
    check_folder,
    json_option,
    server_options,
)
from gradwire.cli.output import StatusLine, table
from gradwire.errors import PermissionDeniedError, UnavailableError
from gradwire.loadtest.report import to_html
from gradwire.loadtest.result import (
    FORMAT,
    Document,
    FlowResult,
    LoadSettings,
    OutcomeResult,
    ScenarioResult,
    SchemaError,
    ServerFacts,
    comparison,
    from_json,
    to_json,
)
from gradwire.loadtest.runner import Fleet, FleetError, Pace, Runner, failures, silence
from gradwire.loadtest.sampling import MetricsEndpoint, Probe, ProcessTree, machine
from gradwire.loadtest.scenarios import SCENARIOS, Scenario, at_rate, with_callers

EXAMPLE = """\b
Examples:
  gradwire bench --scenario tiny --scenario large --report report.html
  gradwire bench --scenario tiny --rate 300 --duration 60 --output after.json \\
      --target 127.0.0.1:50051 --metrics http://127.0.0.1:9464/metrics
  gradwire bench --compare before.json after.json
"""

_SCENARIOS = "\n".join(f"  {scenario.name:16}{scenario.summary}" for scenario in SCENARIOS.values())


def _check_file(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Path | None:
    return value if value is None else check_folder(context, parameter, value)


def _check_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        message = f"{value!r} is no URL; give one such as http://127.0.0.1:9464/metrics"
        raise click.BadParameter(message, context, parameter)
    return value


@click.command(
    short_help="Put a server under load, and report.",
    epilog=f"\b\nScenarios:\n{_SCENARIOS}\n\n{EXAMPLE}\n{exits.HELP}",
)
@click.option(
    "--scenario",
    "names",
    type=click.Choice(list(SCENARIOS)),
    multiple=True,
    help="Which calls are made; once for each. Without it, all scenarios in turn.",
)
@click.option(
    "--duration",
    "duration_s",
    type=SECONDS,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long calls are made in each scenario, and count.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long they are made before that, and do not count.",
)
@click.option(
    "--rate",
    type=CALLS_PER_S,
    metavar="CALLS",
    help="Calls per second that are due, whether or not those before have ended (open loop).",
)
@click.option(
    "--concurrency",
    "callers",
    type=click.IntRange(min=1, max=10_000),
    help="Callers who wait for each result before they call again (closed loop).",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1, max=1000),
    default=2,
    show_default=True,
    help="Most that each process opens for calls, and as many for streams.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1, max=256),
    default=max(1, (os.cpu_count() or 1) // 4),
    show_default="a quarter of the cores",
    help="That make the calls.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="What a call may take.",
)
@click.option(
    "--output",
    "output_file",
    type=OUTPUT_FILE,
    callback=_check_file,
    metavar="FILE",
    help="Write everything that was found, also for --compare.",
)
@click.option(
    "--report",
    "report_file",
    type=OUTPUT_FILE,
    callback=_check_file,
    metavar="FILE.html",
    help="Write a page with plots, for a browser.",
)
@click.option(
    "--metrics",
    "metrics_url",
    callback=_check_url,
    metavar="URL",
    help="Prometheus endpoint of --target, to tell its processor time and memory.",
)
@click.option(
    "--compare",
    "compared",
    type=INPUT_FILE,
    nargs=2,
    metavar="A.json B.json",
    help="Make no calls: tell what B has of A, from two files of --output.",
)
@server_options()
@json_option
def bench(
    *, compared: tuple[Path, Path] | None, server: Connection, as_json: bool, **options: Any
) -> int:
    """Put a server under load: how fast it answers, how often, and whether it is always right.

    Every result is compared, bit by bit, with what it must be. Exit with 0 if all were right and no
    call failed but where the scenario is about that, else with 1; with 7 if the server is gone.

    A --target that does not answer yet is waited for, up to 30 s. Ctrl-C and SIGTERM end the test
    early; what was measured until then is printed and written.

    docs/load-testing.md tells how to read what it prints and writes.
    """
    if compared is not None:
        if as_json:
            message = "--json and --compare exclude each other; give one"
            raise exits.CommandError(message, code=exits.INVALID)
        return _compare(*compared)
    return run(Asked(**options), server, as_json=as_json)


# Seconds that a server has to become ready: the first start of one of its own compiles.
OWN_PATIENCE_S: Final = 600.0
TARGET_PATIENCE_S: Final = 30.0
# Seconds of waiting before a message says so.
SILENT_WAIT_S: Final = 0.5
# Bytes shown of an endpoint's refusal.
_MOST_SAID: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A load test as the command line asks for it."""

    names: tuple[str, ...]
    duration_s: float
    warm_up_s: float
    rate: float | None
    callers: int | None
    connections: int
    processes: int
    timeout_s: float
    output_file: Path | None
    report_file: Path | None
    metrics_url: str | None

    def scenarios(self) -> list[Scenario]:
        """Return the scenarios in the requested order."""
        chosen = [SCENARIOS[name] for name in dict.fromkeys(self.names or SCENARIOS)]
        if self.rate is not None:
            return [at_rate(one, self.rate) for one in chosen]
        if self.callers is not None:
            return [with_callers(one, self.callers) for one in chosen]
        return chosen

    def settings(self) -> LoadSettings:
        """Return the settings for the document."""
        return LoadSettings(
            duration_s=self.duration_s,
            warm_up_s=self.warm_up_s,
            timeout_s=self.timeout_s,
            rate=self.rate,
            callers=self.callers,
            connections=self.connections,
            processes=self.processes,
        )


@dataclass(frozen=True, slots=True)
class _Subject:
    """A server to be put under load, and its probe."""

    connection: Connection
    probe: Probe | None
    own: bool


@exits.terminable()
def run(asked: Asked, connection: Connection, *, as_json: bool) -> int:
    """Run the scenarios; print and write the results; return the exit code."""
    if asked.rate is not None and asked.callers is not None:
        raise CommandError("--rate and --concurrency exclude each other; give one", code=INVALID)
    if asked.metrics_url is not None and connection.target is None:
        raise CommandError("--metrics is for a --target; give that too", code=INVALID)
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    here = machine()
    with StatusLine() as line, _subject(connection, asked.metrics_url) as subject:
        server = _server(subject, line)
        if isinstance(subject.probe, MetricsEndpoint):
            _check_endpoint(subject.probe, asked.metrics_url)
        course = _run_all(asked, subject, line, cores=here.cores, as_json=as_json)
    if course.interrupted is not None and not course.results:
        raise course.interrupted
    document = Document(
        format=FORMAT,
        when=when,
        command=shlex.join(["gradwire", *sys.argv[1:]]),
        interrupted=course.interrupted is not None,
        machine=here,
        server=server,
        settings=asked.settings(),
        scenarios=course.results,
    )
    if as_json:
        click.echo(to_json(document))
    _write(document, asked, to_stderr=as_json)
    if course.interrupted is not None:
        return exits.code_of_interruption(course.interrupted)
    if course.gone:
        raise CommandError(f"{server.target}: {course.gone}", code=exits.CODES[UnavailableError])
    return exits.OTHER if any(map(failures, course.results)) else 0


def _compare(before: Path, after: Path) -> int:
    """Print the ratios of the second file to the first."""
    documents: list[Document] = []
    for path in (before, after):
        try:
            documents.append(from_json(path.read_text(encoding="utf-8")))
        except (SchemaError, UnicodeDecodeError) as error:
            why = error if isinstance(error, SchemaError) else "it is no text"
            wanted = "give a file that `gradwire bench --output` has written"
            raise CommandError(f"--compare {path}: {why}; {wanted}", code=INVALID) from None
    first, second = documents
    for name, path, one in (("A", before, first), ("B", after, second)):
        click.echo(f"{name}  {path}: {one.when}, {one.server.backend or '?'}, {one.machine.cpu}")
    titles, rows, notes = comparison(first, second)
    click.echo("\n".join(["", *table(titles, rows, last_to_left=False), "", *notes]))
    return 0


@dataclass(frozen=True, slots=True)
class _Course:
    """How far the scenarios got.

    interrupted  what ended them early, if the user did
    gone         what is to be told where the server was gone; empty else
    """

    results: list[ScenarioResult]
    interrupted: KeyboardInterrupt | None = None
    gone: str = ""


@contextmanager
def _subject(connection: Connection, metrics_url: str | None) -> Generator[_Subject]:
    if connection.target is not None:
        url = metrics_url
        probe = (
            None
            if url is None
            else MetricsEndpoint(url, connection.headers(url), connection.tls_context())
        )
        yield _Subject(connection, probe, own=False)
        return
    with local_process() as server:
        yield _Subject(replace(connection, target=server.target), ProcessTree(server.pid), own=True)


def _check_endpoint(endpoint: MetricsEndpoint, url: str | None) -> None:
    """Refuse an endpoint without the needed metrics, before the load."""
    try:
        usage = endpoint.ask()
    except HTTPError as error:
        raise _refusal(error, url) from None
    except (OSError, HTTPException) as error:
        raise CommandError(f"--metrics {url}: {error}") from None
    if usage is None:
        raise CommandError(
            f"--metrics {url}: no processor time and memory is told there; give the /metrics of "
            "the server's --http-port"
        )


def _refusal(error: HTTPError, url: str | None) -> CommandError:
    """Return the error of an endpoint that refuses."""
    refused = error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    with error, suppress(OSError, HTTPException):
        said = error.read(_MOST_SAID).decode(errors="replace").strip()
        return CommandError(
            f"--metrics {url}: {said or error}",
            code=exits.CODES[PermissionDeniedError] if refused else exits.OTHER,
        )
    return CommandError(f"--metrics {url}: {error}")


def _server(subject: _Subject, line: StatusLine) -> ServerFacts:
    """Wait until the server serves; return its facts."""
    target = subject.connection.target or ""
    patience_s = OWN_PATIENCE_S if subject.own else TARGET_PATIENCE_S
    waiting = f"waiting up to {patience_s:g} s for the server at {target}"
    with subject.connection.client() as client:
        line.show(waiting)
        try:
            client.wait_ready(min(SILENT_WAIT_S, patience_s))
        except UnavailableError:
            if not subject.own and not line.is_seen:
                click.echo(f"gradwire: {waiting}", err=True)
            client.wait_ready(patience_s)
        # A token that does not open calls would fail every one of them.
        client.operators()
        try:
            info = client.server_info()
        except PermissionDeniedError:
            # A token that opens evaluations need not open this.
            return ServerFacts(
                target=target,
                own=subject.own,
                version="",
                numerics_version="",
                backend="",
                backend_reason="",
            )
    return ServerFacts(
        target=target,
        own=subject.own,
        version=info.version,
        numerics_version=info.numerics_version,
        backend=info.backend,
        backend_reason=info.backend_reason,
    )


def _run_all(
    asked: Asked, subject: _Subject, line: StatusLine, *, cores: int, as_json: bool
) -> _Course:
    """Run scenarios until the last one, until the user ends them, or until the server is gone."""
    pace = Pace(duration_s=asked.duration_s, warm_up_s=asked.warm_up_s, timeout_s=asked.timeout_s)
    results: list[ScenarioResult] = []
    left = asked.scenarios()
    try:
        with Fleet(
            subject.connection.async_client,
            processes=asked.processes,
            connections=asked.connections,
        ) as fleet:
            runner = Runner(
                fleet,
                pace,
                probe=subject.probe,
                cores=cores if subject.own else None,
                show=line.show,
            )
            while left:
                scenario = left.pop(0)
                result = runner.run(scenario)
                # A scenario without counted calls has no result.
                if runner.interrupted is None or any(flow.sent for flow in result.flows):
                    results.append(result)
                    line.show("")
                    if not as_json:
                        click.echo("\n".join(told(result)))
                if runner.interrupted is not None:
                    return _Course(results, runner.interrupted)
                if runner.silent_since is not None:
                    return _Course(results, gone=_gone(scenario, runner.silent_since, left))
    except KeyboardInterrupt as error:
        return _Course(results, error)
    except FleetError as error:
        raise CommandError(str(error)) from None
    return _Course(results)


def _gone(scenario: Scenario, since_s: float, left: Sequence[Scenario]) -> str:
    names = ", ".join(one.name for one in left)
    return f"{silence(since_s)} of {scenario.name}" + (f"; not run: {names}" if left else "")


def _write(document: Document, asked: Asked, *, to_stderr: bool) -> None:
    for path, text in ((asked.output_file, to_json), (asked.report_file, to_html)):
        if path is not None:
            path.write_text(text(document), encoding="utf-8")
            click.echo(f"Wrote {path}", err=to_stderr)


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
