"""`gradwire bench`: starts what is needed, runs the scenarios, tells what came of it."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import click

from gradwire.bench.comparing import comparison
from gradwire.bench.document import (
    FORMAT,
    Document,
    LoadSettings,
    ScenarioResult,
    SchemaError,
    ServerFacts,
    from_json,
    to_json,
)
from gradwire.bench.fleet import Fleet, FleetError
from gradwire.bench.machine import machine
from gradwire.bench.report import to_html
from gradwire.bench.running import Pace, Runner, failures, silence
from gradwire.bench.sampling import MetricsEndpoint, Probe, ProcessTree
from gradwire.bench.scenarios import SCENARIOS, Scenario, at_rate, with_callers
from gradwire.cli import exits
from gradwire.cli.bench_texts import told
from gradwire.cli.connection import Connection
from gradwire.cli.exits import INVALID, CommandError
from gradwire.cli.local_server import local_process
from gradwire.cli.progress import StatusLine
from gradwire.cli.texts import table
from gradwire.errors import PermissionDeniedError, UnavailableError

# Seconds that a server has to become ready: the first start of one of its own compiles.
OWN_PATIENCE_S: Final = 600.0
TARGET_PATIENCE_S: Final = 30.0
# Of that, what passes before it is said.
SILENT_WAIT_S: Final = 0.5
# Bytes of what an endpoint says that refuses.
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
        """Return what is to be run, in the order asked for."""
        chosen = [SCENARIOS[name] for name in dict.fromkeys(self.names or SCENARIOS)]
        if self.rate is not None:
            return [at_rate(one, self.rate) for one in chosen]
        if self.callers is not None:
            return [with_callers(one, self.callers) for one in chosen]
        return chosen

    def settings(self) -> LoadSettings:
        """Return what the document tells of it."""
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
    """A server to be put under load, and what looks at it."""

    connection: Connection
    probe: Probe | None
    own: bool


@exits.terminable()
def run(asked: Asked, connection: Connection, *, as_json: bool) -> int:
    """Run the scenarios; print and write what came of them; return the exit code."""
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


def compare(before: Path, after: Path) -> int:
    """Print what the second has of the first."""
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
    """Refuse one that does not tell what is looked for, before the load and not after it."""
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
    """Return what an endpoint says that does not answer with what was asked for."""
    refused = error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    with error, suppress(OSError, HTTPException):
        said = error.read(_MOST_SAID).decode(errors="replace").strip()
        return CommandError(
            f"--metrics {url}: {said or error}",
            code=exits.CODES[PermissionDeniedError] if refused else exits.OTHER,
        )
    return CommandError(f"--metrics {url}: {error}")


def _server(subject: _Subject, line: StatusLine) -> ServerFacts:
    """Wait until the server serves; return what it tells of itself."""
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
                # One that was ended before any of its calls counted tells nothing.
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
