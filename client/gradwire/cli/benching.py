"""`gradwire bench`: starts what is needed, runs the scenarios, tells what came of it."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from gradwire.bench.comparing import comparison
from gradwire.bench.document import (
    FORMAT,
    Document,
    ScenarioResult,
    SchemaError,
    Server,
    Settings,
    from_json,
    to_json,
)
from gradwire.bench.fleet import Fleet, FleetError
from gradwire.bench.machine import machine
from gradwire.bench.report import to_html
from gradwire.bench.running import Pace, Runner, failures
from gradwire.bench.sampling import MetricsEndpoint, Probe, ProcessTree
from gradwire.bench.scenarios import SCENARIOS, Scenario, at_rate, with_callers
from gradwire.cli import exits
from gradwire.cli.connection import Connection
from gradwire.cli.exits import INVALID, CommandError
from gradwire.cli.local_server import local_process
from gradwire.cli.progress import StatusLine
from gradwire.cli.texts import table
from gradwire.errors import PermissionDeniedError

# Seconds that a server has to become ready: the first start of one of its own compiles.
OWN_PATIENCE_S: Final = 600.0
TARGET_PATIENCE_S: Final = 30.0


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
    json_file: Path | None
    report_file: Path | None
    metrics_url: str | None

    def scenarios(self) -> list[Scenario]:
        """Return what is to be run, in the order asked for."""
        chosen = [SCENARIOS[name] for name in dict.fromkeys(self.names or SCENARIOS)]
        if self.rate is not None:
            return [at_rate(one, self.rate) for one in chosen]
        if self.callers is not None:
            return [with_callers(one, self.callers) for one in chosen]
        return chosen

    def settings(self) -> Settings:
        """Return what the document tells of it."""
        return Settings(
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
    """A server to be put under load, and what looks at it."""

    connection: Connection
    probe: Probe | None
    own: bool


def run(asked: Asked, connection: Connection) -> int:
    """Run the scenarios; print and write what came of them; return the exit code."""
    if asked.rate is not None and asked.callers is not None:
        raise CommandError("--rate and --concurrency exclude each other; give one", code=INVALID)
    if asked.metrics_url is not None and connection.target is None:
        raise CommandError("--metrics is for a --target; give that too", code=INVALID)
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    here = machine()
    with StatusLine() as line, _subject(connection, asked.metrics_url) as subject:
        line.show("waiting for the server")
        server = _server(subject)
        results, interrupted = _run_all(asked, subject, line, cores=here.cores)
    document = Document(
        format=FORMAT,
        when=when,
        command=shlex.join(["gradwire", *sys.argv[1:]]),
        interrupted=interrupted,
        machine=here,
        server=server,
        settings=asked.settings(),
        scenarios=results,
    )
    _write(document, asked)
    if interrupted:
        return exits.INTERRUPTED
    return exits.OTHER if any(map(failures, results)) else 0


def compare(before: Path, after: Path) -> int:
    """Print what the second has of the first."""
    documents: list[Document] = []
    for path in (before, after):
        try:
            documents.append(from_json(path.read_text(encoding="utf-8")))
        except (SchemaError, UnicodeDecodeError) as error:
            raise CommandError(f"{path}: {error}", code=INVALID) from None
    first, second = documents
    for name, path, one in (("A", before, first), ("B", after, second)):
        click.echo(f"{name}  {path}: {one.when}, {one.server.backend or '?'}, {one.machine.cpu}")
    titles, rows, notes = comparison(first, second)
    click.echo("\n".join(["", *table(titles, rows, last_to_left=False), "", *notes]))
    return 0


@contextmanager
def _subject(connection: Connection, metrics_url: str | None) -> Generator[_Subject]:
    if connection.target is not None:
        url = metrics_url
        probe = None if url is None else MetricsEndpoint(url, connection.headers(url))
        yield _Subject(connection, probe, own=False)
        return
    with local_process() as server:
        yield _Subject(replace(connection, target=server.target), ProcessTree(server.pid), own=True)


def _server(subject: _Subject) -> Server:
    """Wait until the server serves; return what it tells of itself."""
    target = subject.connection.target or ""
    with subject.connection.client() as client:
        client.wait_ready(OWN_PATIENCE_S if subject.own else TARGET_PATIENCE_S)
        try:
            info = client.server_info()
        except PermissionDeniedError:
            # A token that opens evaluations need not open this.
            return Server(
                target=target,
                own=subject.own,
                version="",
                numerics_version="",
                backend="",
                backend_reason="",
            )
    return Server(
        target=target,
        own=subject.own,
        version=info.version,
        numerics_version=info.numerics_version,
        backend=info.backend,
        backend_reason=info.backend_reason,
    )


def _run_all(
    asked: Asked, subject: _Subject, line: StatusLine, *, cores: int
) -> tuple[list[ScenarioResult], bool]:
    """Run scenarios until the last one, or until the user ends them."""
    pace = Pace(duration_s=asked.duration_s, warm_up_s=asked.warm_up_s, timeout_s=asked.timeout_s)
    results: list[ScenarioResult] = []
    with Fleet(
        subject.connection.async_client, processes=asked.processes, connections=asked.connections
    ) as fleet:
        runner = Runner(
            fleet, pace, probe=subject.probe, cores=cores if subject.own else None, show=line.show
        )
        for scenario in asked.scenarios():
            try:
                results.append(runner.run(scenario))
            except KeyboardInterrupt:
                return results, True
            except FleetError as error:
                raise CommandError(str(error)) from None
            line.show("")
            click.echo("\n".join(_told(results[-1])))
            if runner.interrupted:
                break
    return results, runner.interrupted


def _write(document: Document, asked: Asked) -> None:
    for path, text in ((asked.json_file, to_json), (asked.report_file, to_html)):
        if path is not None:
            path.write_text(text(document), encoding="utf-8")
            click.echo(f"Wrote {path}")


def _told(result: ScenarioResult) -> Sequence[str]:
    """Describe a scenario in lines."""
    titles = ("", "loop", "right/s", "MB/s", "p50 ms", "p99 ms", "p99.9", "max", "uncorrected p99")
    rows = [
        (
            flow.name,
            f"{flow.callers} callers" if flow.rate is None else f"{flow.rate:.4g}/s",
            f"{flow.calls_per_s:.1f}",
            f"{flow.megabytes_per_s:.1f}",
            *(
                f"{time:.2f}"
                for time in (
                    flow.corrected.p50_ms,
                    flow.corrected.p99_ms,
                    flow.corrected.p999_ms,
                    flow.corrected.max_ms,
                    flow.uncorrected.p99_ms,
                )
            ),
        )
        for flow in result.flows
    ]
    lines = [f"{result.name}: {result.summary}", *table(titles, rows, last_to_left=False)]
    for flow in result.flows:
        for outcome in flow.outcomes:
            if (outcome.status, outcome.reason) != ("OK", ""):
                mark = "" if outcome.expected else "  FAILED"
                lines.append(
                    f"  {flow.name}: {outcome.count} of {flow.sent} {outcome.status} "
                    f"{outcome.reason}, p50 {outcome.p50_ms:.2f} ms{mark}"
                )
    lines += [f"  note: {warning}" for warning in result.warnings]
    return [*lines, ""]
