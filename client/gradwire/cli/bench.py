"""`gradwire bench`: puts a server under load, and reports."""

from __future__ import annotations

import datetime as dt
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from gradwire.cli import output
from gradwire.cli.connection import Connection
from gradwire.cli.options import (
    INPUT_FILE,
    OutputFile,
    Positive,
    json_option,
    seconds_option,
    server_options,
)
from gradwire.cli.output import InvalidUsage, load, show_status, table
from gradwire.errors import PermissionDeniedError
from gradwire.health import health
from gradwire.loadtest.generator import LoadSettings
from gradwire.loadtest.result import (
    FORMAT,
    TITLES,
    Document,
    FlowResult,
    ScenarioResult,
    ServerFacts,
    comparison,
    failures,
    from_json,
    to_json,
)
from gradwire.loadtest.runner import Runner, machine, read_usage
from gradwire.loadtest.scenarios import SCENARIOS

EXAMPLE = """\b
Examples:
  gradwire bench --scenario tiny --scenario large --report report.html
  gradwire bench --scenario tiny --rate 300 --duration 60 --output after.json \\
      --target 127.0.0.1:50051 --metrics http://127.0.0.1:9464/metrics
  gradwire bench --compare before.json after.json
"""

_SCENARIOS = "\n".join(f"  {scenario.name:16}{scenario.summary}" for scenario in SCENARIOS.values())


def _read_url(text: str) -> str:
    """Refuse what is not a URL of HTTP."""
    if not text.startswith(("http://", "https://")):
        wanted = "give one such as http://127.0.0.1:9464/metrics"
        raise click.BadParameter(f"{text!r} is not a URL; {wanted}")
    return text


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
    type=Positive(0, 1e6, min_open=True),
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
    type=_read_url,
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
    if metrics_url is not None and server.target is None:
        raise InvalidUsage("--metrics needs --target; give that too")
    writers: list[Writer] = []
    if output_file is not None:
        writers.append((output_file, to_json))
    if report_file is not None:
        writers.append((report_file, load("gradwire.loadtest.report").to_html))
    return _run(names or SCENARIOS, settings, server, metrics_url, writers, as_json=as_json)


# Seconds that a server has to become ready: the first start of a local server compiles code.
OWN_PATIENCE_S = 600.0
TARGET_PATIENCE_S = 30.0
# A file to write, and the function that makes its text.
Writer = tuple[Path, Callable[[Document], str]]


def _run(
    names: Iterable[str],
    settings: LoadSettings,
    connection: Connection,
    metrics_url: str | None,
    writers: Sequence[Writer],
    *,
    as_json: bool,
) -> int:
    """Run the scenarios; print and write the results; return the exit code."""
    own = connection.target is None
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    here = machine()
    results: list[ScenarioResult] = []
    with connection.served(http=True) as (subject, own_url):
        facts = _server(subject, own=own)
        probe = None
        if url := metrics_url or own_url:
            probe = partial(read_usage, url, connection.headers(url), connection.tls_context())
            # An endpoint that cannot be read is refused before the load.
            probe()
        cores = here.cores if own else None
        connect = subject.async_client
        with Runner(connect, probe=probe, cores=cores, show=show_status) as runner:
            try:
                for name in dict.fromkeys(names):
                    result = runner.run(SCENARIOS[name], settings)
                    results.append(result)
                    if not as_json:
                        click.echo("\n".join(_told(result)))
                    if runner.interrupted is not None:
                        raise runner.interrupted
                    ends = [end.status for flow in result.flows for end in flow.outcomes]
                    if "UNAVAILABLE" in ends:
                        # Raises if the server is gone.
                        health(subject.target, credentials=subject.credentials())
            finally:
                ended = isinstance(sys.exception(), KeyboardInterrupt)
                command = shlex.join(["gradwire", *sys.argv[1:]])
                document = Document(FORMAT, when, command, ended, here, facts, settings, results)
                if results:
                    _write(document, writers, as_json=as_json)
    return output.OTHER if any(map(failures, results)) else 0


def _write(document: Document, writers: Sequence[Writer], *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(document))
    for path, write in writers:
        path.write_text(write(document), encoding="utf-8")
        click.echo(f"Wrote {path}", err=as_json)


def _compare(before: Path, after: Path) -> int:
    """Print the ratios of the second file to the first."""
    documents: list[Any] = []
    for name, path in (("A", before), ("B", after)):
        try:
            one = from_json(path.read_text(encoding="utf-8"))
            ended = ", interrupted: its figures are those until then" if one.interrupted else ""
            about = f"{one.when}, {one.server.backend or '?'}, {one.machine.cpu}{ended}"
            click.echo(f"{name}  {path}: {about}")
        except (ValueError, AttributeError) as error:
            wanted = "give a file that `gradwire bench --output` has written"
            raise InvalidUsage(f"--compare {path}: {error}; {wanted}") from None
        documents.append(one)
    rows, notes = comparison(*documents)
    if not rows:
        raise InvalidUsage(f"--compare: {before} and {after} have no scenario in common")
    click.echo("\n".join(["", *table(TITLES, rows), "", *notes]))
    return 0


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


_TITLES = ("", "loop", "right/s", "MB/s", "p50 ms", "p99 ms", "p99.9", "max", "uncorrected p99")


def _told(result: ScenarioResult) -> list[str]:
    """Describe a scenario in lines."""
    lines = [f"{result.name}: {result.summary}", *table(_TITLES, map(_row, result.flows))]
    for flow in result.flows:
        for end in flow.outcomes:
            if end.status != "OK":
                mark = "" if end.expected else "  FAILED"
                about = f"{end.count} of {flow.sent}, p50 {end.p50_ms:.2f} ms"
                lines.append(f"  {flow.name}: {about}: {end.status} {end.reason}{mark}")
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
