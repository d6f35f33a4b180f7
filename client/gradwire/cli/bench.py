"""`gradwire bench`: puts a server under load, and reports."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import click

from gradwire.cli import output
from gradwire.cli.connection import Connection, local_server
from gradwire.cli.options import (
    INPUT_FILE,
    OutputFile,
    Positive,
    json_option,
    seconds_option,
    server_options,
)
from gradwire.cli.output import CommandError, InvalidUsage, status_line, table
from gradwire.errors import PermissionDeniedError, UnavailableError, installing
from gradwire.loadtest.generator import LoadSettings
from gradwire.loadtest.result import (
    FORMAT,
    TITLES,
    Document,
    FlowResult,
    OutcomeResult,
    ScenarioResult,
    ServerFacts,
    comparison,
    failures,
    from_json,
    to_json,
)
from gradwire.loadtest.runner import Fleet, MetricsEndpoint, Runner, machine
from gradwire.loadtest.scenarios import SCENARIOS

EXAMPLE = """\b
Examples:
  gradwire bench --scenario tiny --scenario large --report report.html
  gradwire bench --scenario tiny --rate 300 --duration 60 --output after.json \\
      --target 127.0.0.1:50051 --metrics http://127.0.0.1:9464/metrics
  gradwire bench --compare before.json after.json
"""

_SCENARIOS = "\n".join(f"  {scenario.name:16}{scenario.summary}" for scenario in SCENARIOS.values())


@click.command(
    short_help="Put a server under load, and report.",
    epilog=f"\b\nScenarios:\n{_SCENARIOS}\n\n{EXAMPLE}\n{output.HELP}",
)
@click.option(
    "--scenario",
    "names",
    type=click.Choice(list(SCENARIOS)),
    multiple=True,
    help="Which calls are made; once for each. Without it, all scenarios in turn.",
)
@seconds_option(
    "--duration",
    "duration_s",
    default=10.0,
    help="How long calls are made in each scenario, and count.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=2.0,
    metavar="SECONDS",
    help="How long they are made before that, and do not count.",
)
@click.option(
    "--rate",
    type=Positive(1e6),
    metavar="CALLS",
    help="Calls per second that are due, whether or not those before have ended (open loop).",
)
@click.option(
    "--concurrency",
    "callers",
    type=click.IntRange(1, 10_000),
    help="Callers who wait for each result before they call again (closed loop).",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 1000),
    default=2,
    help="Most that each process opens for calls, and as many for streams.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=max(1, (os.cpu_count() or 1) // 4),
    show_default="a quarter of the cores",
    help="That make the calls.",
)
@seconds_option("--timeout", "timeout_s", default=10.0, help="What a call may take.")
@click.option(
    "--output",
    "output_file",
    type=OutputFile(),
    help="Write everything that was found, also for --compare.",
)
@click.option(
    "--report",
    "report_file",
    type=OutputFile(),
    metavar="FILE.html",
    help="Write a page for a browser, with charts where matplotlib is installed.",
)
@click.option(
    "--metrics",
    "metrics_url",
    metavar="URL",
    help="Prometheus endpoint of --target, to tell its processor time and memory.",
)
@click.option(
    "--compare",
    "compared",
    type=INPUT_FILE,
    nargs=2,
    metavar="A.json B.json",
    help="Make no calls: compare two files of --output, the figures of B relative to A.",
)
@server_options()
@json_option
@output.terminable()
def bench(
    *,
    names: tuple[str, ...],
    output_file: Path | None,
    report_file: Path | None,
    metrics_url: str | None,
    compared: tuple[Path, Path] | None,
    server: Connection,
    as_json: bool,
    **options: Any,
) -> int:
    """Put a server under load and measure speed and correctness.

    Every result is compared, bit by bit, with the expected one. Exit with 0 if all were right and
    no call failed, except in ways that the scenario is about; else with 1; with 7 if the server is
    gone.

    A --target that does not answer yet is waited for, up to 30 s. Ctrl-C and SIGTERM end the test
    early; the results until then are printed and written.

    docs/load-testing.md explains the output.
    """
    settings = LoadSettings(**options)
    if settings.rate and settings.callers:
        raise InvalidUsage("--rate and --concurrency exclude each other; give one")
    if compared is not None:
        if as_json:
            raise InvalidUsage("--json and --compare exclude each other; give one")
        return _compare(*compared)
    _check_url(metrics_url, server)
    writers = _writers(output_file, report_file)
    return _run(names or SCENARIOS, settings, server, metrics_url, writers, as_json=as_json)


# Seconds that a server has to become ready: the first start of a local server compiles code.
OWN_PATIENCE_S = 600.0
TARGET_PATIENCE_S = 30.0
# Seconds that a server has to answer after a scenario in which it was not available.
_PRESENCE_S = 5.0
# Bytes shown of an endpoint's refusal.
_MOST_SAID = 1000


def _run(
    names: Iterable[str],
    settings: LoadSettings,
    connection: Connection,
    metrics_url: str | None,
    writers: Sequence[tuple[Path, Callable[[Document], str]]],
    *,
    as_json: bool,
) -> int:
    """Run the scenarios; print and write the results; return the exit code."""
    own = connection.target is None
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    here = machine()
    results: list[ScenarioResult] = []
    ended: BaseException | None = None
    with status_line() as show, _subject(connection, metrics_url) as (subject, probe):
        facts = _server(subject, own=own)
        if metrics_url is not None and probe is not None:
            _check_endpoint(probe, f"--metrics {metrics_url}")
        fleet = Fleet(subject.async_client, processes=settings.processes)
        cores = here.cores if own else None
        runner = Runner(fleet, settings, probe=probe, cores=cores, show=show)
        try:
            for result in _results(names, subject, fleet, runner):
                results.append(result)
                show("")
                if not as_json:
                    click.echo("\n".join(_told(result)))
        except (KeyboardInterrupt, UnavailableError, ChildProcessError, CommandError) as error:
            ended = error
    if ended is not None and not results:
        raise ended
    interrupted = isinstance(ended, KeyboardInterrupt)
    command = shlex.join(["gradwire", *sys.argv[1:]])
    document = Document(FORMAT, when, command, interrupted, here, facts, settings, results)
    if as_json:
        click.echo(to_json(document))
    for path, write in writers:
        path.write_text(write(document), encoding="utf-8")
        click.echo(f"Wrote {path}", err=as_json)
    if isinstance(ended, KeyboardInterrupt):
        return output.code_of_interruption(ended)
    if ended is not None:
        raise ended
    return output.OTHER if any(map(failures, results)) else 0


def _compare(before: Path, after: Path) -> int:
    """Print the ratios of the second file to the first."""
    documents: list[Any] = []
    for name, path in (("A", before), ("B", after)):
        try:
            one = from_json(path.read_text(encoding="utf-8"))
            click.echo(
                f"{name}  {path}: {one.when}, {one.server.backend or '?'}, {one.machine.cpu}"
            )
        except (ValueError, AttributeError) as error:
            wanted = "give a file that `gradwire bench --output` has written"
            raise InvalidUsage(f"--compare {path}: {error}; {wanted}") from None
        documents.append(one)
    rows, notes = comparison(*documents)
    if not rows:
        raise InvalidUsage(f"--compare: {before} and {after} have no scenario in common")
    click.echo("\n".join(["", *table(TITLES, rows), "", *notes]))
    return 0


def _writers(
    output_file: Path | None, report_file: Path | None
) -> list[tuple[Path, Callable[[Document], str]]]:
    """Return the files to write, and the functions that make their texts."""
    writers: list[tuple[Path, Callable[[Document], str]]] = []
    if output_file is not None:
        writers.append((output_file, to_json))
    if report_file is not None:
        try:
            from gradwire.loadtest.report import to_html  # noqa: PLC0415 - Jinja2 may be missing
        except ModuleNotFoundError:
            raise CommandError(f"--report is written with Jinja2: {installing('plot')}") from None
        writers.append((report_file, to_html))
    return writers


def _check_url(metrics_url: str | None, connection: Connection) -> None:
    if metrics_url is None:
        return
    if connection.target is None:
        raise InvalidUsage("--metrics needs --target; give that too")
    if not metrics_url.startswith(("http://", "https://")):
        wanted = "give one such as http://127.0.0.1:9464/metrics"
        raise InvalidUsage(f"--metrics: {metrics_url!r} is not a URL; {wanted}")


@contextmanager
def _subject(
    connection: Connection, metrics_url: str | None
) -> Generator[tuple[Connection, MetricsEndpoint | None]]:
    """Yield a connection, and its server's metrics if they are known.

    Without a target the server is started here, and ends with the block.
    """
    if connection.target is None:
        with local_server(http=True) as server:
            target = dataclasses.replace(connection, target=server.target)
            yield target, MetricsEndpoint(f"http://{server.http_address()}/metrics")
    elif metrics_url is None:
        yield connection, None
    else:
        headers = connection.headers(metrics_url)
        yield connection, MetricsEndpoint(metrics_url, headers, connection.tls_context())


def _check_endpoint(endpoint: MetricsEndpoint, option: str) -> None:
    """Refuse an endpoint that lacks the needed metrics, before the load."""
    try:
        endpoint()
    except HTTPError as error:
        with error:
            said = error.read(_MOST_SAID).decode(errors="replace").strip()
        code = output.REFUSED if error.code in {401, 403} else output.OTHER
        raise CommandError(f"{option}: {said or error}", code=code) from None
    except OSError as error:
        raise CommandError(f"{option}: {error}") from None


def _server(connection: Connection, *, own: bool) -> ServerFacts:
    """Wait until the server serves; return its facts."""
    target = connection.target or ""
    with connection.client() as client:
        connection.wait_ready(client, OWN_PATIENCE_S if own else TARGET_PATIENCE_S)
        # A token that does not open calls would fail every one of them.
        client.operators()
        try:
            info = client.server_info()
        except PermissionDeniedError:
            # A token that opens evaluations need not open this.
            return ServerFacts(target, own)
    return ServerFacts(
        target, own, info.version, info.numerics_version, info.backend, info.backend_reason
    )


def _results(
    names: Iterable[str], connection: Connection, fleet: Fleet, runner: Runner
) -> Generator[ScenarioResult]:
    """Yield results of the scenarios, one after the other.

    Raises if the user ends the test, or if the server is gone.
    """
    with fleet:
        for name in dict.fromkeys(names):
            result = runner.run(SCENARIOS[name])
            # A scenario without counted calls has no result.
            if runner.interrupted is None or any(flow.sent for flow in result.flows):
                yield result
            if runner.interrupted is not None:
                raise runner.interrupted
            if any(end.status == "UNAVAILABLE" for flow in result.flows for end in flow.outcomes):
                connection.health(timeout_s=_PRESENCE_S)


_TITLES = ("", "loop", "right/s", "MB/s", "p50 ms", "p99 ms", "p99.9", "max", "uncorrected p99")


def _told(result: ScenarioResult) -> list[str]:
    """Describe a scenario in lines."""
    lines = [f"{result.name}: {result.summary}", *table(_TITLES, map(_row, result.flows))]
    for flow in result.flows:
        lines += [_end(flow, outcome) for outcome in flow.outcomes if outcome.status != "OK"]
    lines += [f"  note: {warning}" for warning in result.warnings]
    return [*lines, ""]


def _row(flow: FlowResult) -> tuple[str, ...]:
    one = flow.corrected
    times = (one.p50_ms, one.p99_ms, one.p999_ms, one.max_ms, flow.uncorrected.p99_ms)
    return (
        flow.name,
        f"{flow.callers} callers" if flow.rate is None else f"{flow.rate:.4g}/s",
        f"{flow.calls_per_s:.1f}",
        f"{flow.megabytes_per_s:.1f}",
        *(f"{time:.2f}" if flow.ok else "-" for time in times),
    )


def _end(flow: FlowResult, outcome: OutcomeResult) -> str:
    kind = " ".join(filter(None, (outcome.status, outcome.reason)))
    mark = "" if outcome.expected else "  FAILED"
    return (
        f"  {flow.name}: {outcome.count} of {flow.sent} {kind}, p50 {outcome.p50_ms:.2f} ms{mark}"
    )
