"""The commands and their options; each one's work is in a module of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from gradwire._targets import DEFAULT
from gradwire._variables import SERVER_VARIABLES, unknown_variables
from gradwire._version import VERSION
from gradwire.cli import evaluating, exits, listing
from gradwire.cli.bench import bench
from gradwire.cli.connection import Connection
from gradwire.cli.inspecting import check, compare, explain
from gradwire.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    SECONDS,
    attribute_option,
    check_folder,
    json_option,
    operator_option,
    read_shape,
    server_options,
)

EXAMPLE = """\b
Example:
  gradwire evaluate diff_dst.npy diff_src.npy --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --output-shape 8,64,56,56
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of exits.HELP."""
    try:
        code = commands.main(arguments, prog_name="gradwire", standalone_mode=False) or 0
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo("gradwire: interrupted", file=sys.stderr)
        code = exits.code_of_interruption(error)
    except Exception as error:
        known = exits.code_of(error)
        if known is None:
            raise
        exits.report(error)
        code = known
    sys.exit(code)


@click.group(
    epilog=exits.HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(VERSION, message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Gradients of resampling operators as a gRPC service, with the weights of each framework.

    Start here: `gradwire demo`, `gradwire operators`.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    for words in unknown_variables(SERVER_VARIABLES):
        click.echo(f"gradwire: warning: {words}", err=True)


@commands.command(
    short_help="Evaluate an operator on a .npy file.", epilog=f"{EXAMPLE}\n{exits.HELP}"
)
@click.argument("source", metavar="INPUT.npy", type=INPUT_FILE)
@click.argument("result", metavar="OUTPUT.npy", type=OUTPUT_FILE, callback=check_folder)
@operator_option()
@attribute_option
@click.option(
    "--output-shape",
    callback=read_shape,
    metavar="N,N,...",
    help="Shape of the result; may be left out where attributes determine it.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16"]),
    help="Read the elements of INPUT.npy, 2 bytes each, as this type: .npy has no name for it.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    metavar="SECONDS",
    help="Time for the whole evaluation. Without it, 60 s without progress end it.",
)
@click.option(
    "--split",
    is_flag=True,
    help="Let all servers of --target share an evaluation of more than 4 MiB, with the same bits.",
)
@server_options()
@json_option
def evaluate(*, server: Connection, as_json: bool, **options: Any) -> None:
    """Evaluate one operator on the tensor in INPUT.npy and write its result to OUTPUT.npy.

    Both files are mapped, not read: tensors may be larger than memory. OUTPUT.npy appears complete
    or not at all.
    """
    evaluating.run(evaluating.EvaluateArguments(**options), server, as_json=as_json)


@commands.command(short_help="List operators, or tell all about one.")
@click.argument("name", required=False)
@server_options()
@json_option
def operators(*, name: str | None, server: Connection, as_json: bool) -> None:
    """List the server's operators, or tell all about the one called NAME."""
    listing.print_operators(name, server, as_json=as_json)


@commands.command()
@server_options()
@json_option
def info(*, server: Connection, as_json: bool) -> None:
    """Tell the server's version, backend and limits."""
    listing.print_info(server, as_json=as_json)


@commands.command(short_help="Ask a running server for its health.")
@server_options(default=DEFAULT)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time it has to answer.",
)
@click.option(
    "--wait",
    "wait_s",
    type=SECONDS,
    metavar="SECONDS",
    help="Wait so long for a server that is starting.",
)
def health(*, server: Connection, timeout_s: float, wait_s: float | None) -> None:
    """Ask a running server for its health; exit with 0 only if it is SERVING."""
    listing.print_health(server, timeout_s=timeout_s, wait_s=wait_s)


@commands.command(short_help="Rebuild a photograph through the service.")
@click.option(
    "--output",
    type=OUTPUT_FILE,
    callback=check_folder,
    default="demo.png",
    show_default=True,
    help="Picture to write.",
)
@click.option("--iterations", type=click.IntRange(min=1), default=60, show_default=True)
@server_options()
def demo(*, output: Path, iterations: int, server: Connection) -> None:
    """Rebuild a photograph from its 4x smaller copy, by gradient descent through the service."""
    from gradwire.cli import demonstrating  # noqa: PLC0415 (matplotlib takes long, or is missing)

    demonstrating.run(output, server, iterations=iterations)


for command in (explain, compare, check, bench):
    commands.add_command(command)
