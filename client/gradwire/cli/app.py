"""The commands and their options; each one's work is in a module of its own."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from gradwire._targets import DEFAULT, VARIABLE, read_target
from gradwire.cli import evaluating, exits, listing
from gradwire.cli.connection import Connection

Decorated = Callable[..., Any]

INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class _Seconds(click.FloatRange):
    """A time above 0."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a time; nan is none, though it compares as one."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no time; give seconds above 0", param, ctx)
        return seconds


SECONDS = _Seconds(min=0, min_open=True)

EXAMPLE = """\b
Example:
  gradwire evaluate diff_dst.npy diff_src.npy --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --output-shape 8,64,56,56
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of exits.HELP."""
    try:
        code = commands.main(arguments, prog_name="gradwire", standalone_mode=False) or 0
    except (click.Abort, KeyboardInterrupt):
        click.echo("gradwire: interrupted", file=sys.stderr)
        code = exits.INTERRUPTED
    except Exception as error:
        known = exits.code_of(error)
        if known is None:
            raise
        exits.report(error)
        code = known
    sys.exit(code)


def read_shape(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Turn "8,64,56,56" into axis lengths."""
    if value is None:
        return None
    try:
        lengths = tuple(int(item) for item in value.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        message = f"{value!r} is not a shape; give lengths such as 8,64,56,56"
        raise click.BadParameter(message, context, parameter)
    return lengths


def check_folder(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """Refuse a file in a folder that does not exist now, not after the work."""
    if str(value) == "-":
        message = "'-' does not stand for standard output here; give the name of a file"
        raise click.BadParameter(message, context, parameter)
    if not value.parent.is_dir():
        message = f"{str(value)!r} is in a folder that does not exist; make it"
        raise click.BadParameter(message, context, parameter)
    return value


def check_target(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse what is no address, and name where it came from."""
    try:
        if value is not None:
            read_target(value)
    except ValueError as error:
        source = context.get_parameter_source(parameter.name or "")
        name = VARIABLE if source is ParameterSource.ENVIRONMENT else "--target"
        text = f"{name}{str(error).removeprefix('target')}"
        raise exits.CommandError(text, code=exits.INVALID) from error
    return value


_TLS_FILES = {
    "--tls-ca": "Call --target with TLS, trusting the authorities in FILE, as PEM.",
    "--tls-certificate": "Show the server this client's certificate chain, as PEM.",
    "--tls-key": "The private key of that certificate, as PEM.",
}


def server_options(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Add --target and --tls-*, which reach the command as `server`, a Connection."""

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def connected(**options: Any) -> Any:
            told = {field.name: options.pop(field.name) for field in fields(Connection)}
            return command(server=Connection(**told), **options)

        with_tls: Decorated = connected
        for name, text in reversed(_TLS_FILES.items()):
            with_tls = click.option(name, type=INPUT_FILE, metavar="FILE", help=text)(with_tls)

        of_its_own = "" if default else " Without it a server is started for this command."
        return click.option(
            "--target",
            metavar="HOST:PORT",
            callback=check_target,
            default=default,
            show_default=True,
            envvar=VARIABLE,
            show_envvar=True,
            help=f"Server to call, or several with commas between.{of_its_own}",
        )(with_tls)

    return decorate


def json_option(command: Decorated) -> Decorated:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@click.group(epilog=exits.HELP, invoke_without_command=True)
@click.version_option(package_name="gradwire", message="%(package)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Gradients of resampling operators, exact to each framework's dialect, as a gRPC service.

    Start here: `gradwire demo`, `gradwire operators`.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command(
    short_help="Evaluate an operator on a .npy file.", epilog=f"{EXAMPLE}\n{exits.HELP}"
)
@click.argument("source", metavar="INPUT.npy", type=INPUT_FILE)
@click.argument("result", metavar="OUTPUT.npy", type=OUTPUT_FILE, callback=check_folder)
@click.option("--op", "operator", metavar="NAME", required=True, help="See `gradwire operators`.")
@click.option(
    "--attr",
    "attributes",
    metavar="NAME=VALUE",
    multiple=True,
    help="An attribute; arrays are separated by commas. Once for each attribute.",
)
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
@server_options()
@json_option
def evaluate(*, server: Connection, as_json: bool, **options: Any) -> None:
    """Evaluate one operator on the tensor in INPUT.npy and write its result to OUTPUT.npy.

    Both files are mapped, not read: tensors may be larger than memory. OUTPUT.npy appears complete
    or not at all.
    """
    evaluating.run(evaluating.Job(**options), server, as_json=as_json)


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
