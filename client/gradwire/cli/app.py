"""The program `gradwire`, and its commands about a server."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from gradwire import OperatorInfo, __version__
from gradwire._core.options import DEFAULT
from gradwire._wire.environment import SERVER_VARIABLES, unknown_variables
from gradwire.cli import output
from gradwire.cli.bench import bench
from gradwire.cli.check import check
from gradwire.cli.compare import compare
from gradwire.cli.connection import Connection
from gradwire.cli.demo import demo
from gradwire.cli.evaluate import evaluate
from gradwire.cli.explain import explain
from gradwire.cli.options import check_known, json_option, seconds_option, server_options
from gradwire.cli.output import UNAVAILABLE, CommandError, tell
from gradwire.health import SERVING
from gradwire.health import health as ask_health
from gradwire.ops import OPERATORS, Operator
from gradwire.ops._base import Choice, rule_of

WIDTH = 96


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of output.HELP."""
    try:
        code = commands.main(arguments, prog_name="gradwire", standalone_mode=False) or 0
    except click.Abort as error:
        click.echo("gradwire: interrupted", err=True)
        terminated = isinstance(error.__cause__, output.Terminated)
        code = output.TERMINATED if terminated else output.INTERRUPTED
    except Exception as error:
        known = output.code_of(error)
        if known is None:
            raise
        output.report(error)
        code = known
    sys.exit(code)


@click.group(
    epilog=output.HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Gradients of resampling operators as a gRPC service.

    The weights are those of each framework.

    Start here: `gradwire demo`, `gradwire operators`.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    for words in unknown_variables(SERVER_VARIABLES):
        click.echo(f"gradwire: warning: {words}", err=True)


@commands.command(short_help="List operators, or describe one.")
@click.argument("name", required=False)
@server_options()
@json_option
def operators(*, name: str | None, server: Connection, as_json: bool) -> None:
    """List the server's operators, or describe the one called NAME."""
    with server.client() as client:
        known = {info.name: info for info in client.operators()}
    if name is None:
        width = max(map(len, known)) + 2
        lines = [f"{info.name:{width}}{info.summary}" for info in known.values()]
        lines += ["", "`gradwire operators NAME` describes an operator and its attributes."]
    else:
        check_known(name, known)
        known = {name: known[name]}
        lines = _described(known[name])
    tell(list(map(dataclasses.asdict, known.values())), lines, as_json=as_json)


@commands.command()
@server_options()
@json_option
def info(*, server: Connection, as_json: bool) -> None:
    """Print the server's version, backend and limits."""
    with server.client() as client:
        told = client.server_info()
    facts = dataclasses.asdict(told)
    lines = [
        f"gradwire {told.version}, numerics version {told.numerics_version}",
        f"backend    {told.backend}: {told.backend_reason}",
        *([f"to come    {told.backend_to_come}"] if told.backend_to_come else []),
        f"checksums  {'yes' if told.checksums else 'no'}",
        f"operators  {', '.join(told.operators)}",
        "limits",
        *(f"  {limit:26}{value:>16,}" for limit, value in facts["limits"].items()),
    ]
    tell(facts, lines, as_json=as_json)


@commands.command(short_help="Ask a running server for its health.")
@server_options(default=DEFAULT)
@seconds_option("--timeout", "timeout_s", default=5.0, help="Time to wait for the answer.")
@seconds_option("--wait", "wait_s", help="Time to wait for a server that is starting.")
@json_option
def health(*, server: Connection, timeout_s: float, wait_s: float | None, as_json: bool) -> None:
    """Report a running server's health; exit with 0 only if SERVING."""
    if wait_s is not None:
        with server.client() as client:
            server.wait_ready(client, wait_s)
    status = ask_health(server.target, timeout_s=timeout_s, credentials=server.credentials())
    if as_json or status == SERVING:
        tell({"target": server.target, "status": status}, [status], as_json=as_json)
    if status != SERVING:
        raise CommandError(f"the server at {server.target} is {status}", code=UNAVAILABLE)


def _described(info: OperatorInfo) -> list[str]:
    """Describe an operator, with attributes as --attr takes them."""
    few, many = info.min_rank, info.max_rank
    head = f"""{info.name}
  {info.summary}

  {"forward" if info.gradient else "gradient":14}{info.counterpart}
  axes          {few if few == many else f"{few} to {many}"}
  types         {", ".join(info.data_types)}
  output shape  {"always needed" if info.output_required else "determined by attributes"}
  source        {info.source}
"""
    lines, indent = [head], " " * 9
    known = {field.name: field for field in dataclasses.fields(OPERATORS.get(info.name, Operator))}
    for attribute in info.attributes:
        # An attribute unknown to this SDK keeps the server's words.
        values, default = attribute.allowed_values, attribute.default_value
        field = known.get(attribute.name)
        if field is not None and isinstance(rule := rule_of(field), Choice):
            values = rule.allowed
            default = field.default if isinstance(field.default, str) else default
        lines.append(f"  --attr {attribute.name}={'|'.join(values) or attribute.type}")
        told = "Required." if attribute.required else f"Default: {default}."
        lines.append(click.wrap_text(f"{attribute.description} {told}", WIDTH, indent, indent))
    return lines


for command in (evaluate, demo, explain, compare, check, bench):
    commands.add_command(command)
