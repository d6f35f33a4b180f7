"""The command `gradwire bench`: its options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from gradwire.bench.scenarios import SCENARIOS
from gradwire.cli import exits
from gradwire.cli.connection import Connection
from gradwire.cli.options import (
    CALLS_PER_S,
    INPUT_FILE,
    OUTPUT_FILE,
    SECONDS,
    check_folder,
    json_option,
    server_options,
)

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
    from gradwire.cli import benching  # noqa: PLC0415 (no other command needs it)

    if compared is not None:
        if as_json:
            message = "--json and --compare exclude each other; give one"
            raise exits.CommandError(message, code=exits.INVALID)
        return benching.compare(*compared)
    return benching.run(benching.Asked(**options), server, as_json=as_json)
