"""The program `gradwire` and its commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from gradwire import __version__
from gradwire._wire.environment import SERVER_VARIABLES, unknown_variables
from gradwire.cli import output
from gradwire.cli.bench import bench
from gradwire.cli.check import check
from gradwire.cli.compare import compare
from gradwire.cli.demo import demo
from gradwire.cli.evaluate import evaluate
from gradwire.cli.explain import explain
from gradwire.cli.server_commands import health, info, operators


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of output.HELP."""
    try:
        code = commands.main(arguments, prog_name="gradwire", standalone_mode=False) or 0
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo("gradwire: interrupted", file=sys.stderr)
        code = output.code_of_interruption(error)
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


for command in (
    evaluate,
    operators,
    info,
    health,
    demo,
    explain,
    compare,
    check,
    bench,
):
    commands.add_command(command)
