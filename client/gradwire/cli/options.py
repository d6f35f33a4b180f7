"""Options of several commands, operators from --op and --attr, and the checks of values."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gradwire._core.options import read_target
from gradwire._wire.environment import TARGET_VARIABLE
from gradwire.cli import exits
from gradwire.cli.connection import Connection
from gradwire.cli.exits import INVALID, UNKNOWN, CommandError
from gradwire.ops import OPERATORS, Operator
from gradwire.ops._base import rule_of, unknown_name
from gradwire.tensors import DTYPES

Decorated = Callable[..., Any]

INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# Formats that matplotlib draws without further programs.
PICTURES = (".png", ".svg", ".pdf")

OUTPUT_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class _Number(click.FloatRange):
    """A number above 0."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number; nan is none, though it compares as one."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number; give one above 0", param, ctx)
        return number


SECONDS = _Number(min=0, min_open=True)
CALLS_PER_S = _Number(min=0, min_open=True, max=1e6)


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
    if not lengths or min(lengths) < 0:
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


def check_picture(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Path | None:
    """Refuse a kind of picture that is not drawn, and a folder that does not exist."""
    if value is not None and value.suffix.lower() not in PICTURES:
        message = f"{str(value)!r} is no name for a picture; end it in {' or '.join(PICTURES)}"
        raise click.BadParameter(message, context, parameter)
    return value if value is None else check_folder(context, parameter, value)


def check_target(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse a malformed address; name its source."""
    try:
        if value is not None:
            read_target(value)
    except ValueError as error:
        source = context.get_parameter_source(parameter.name or "")
        name = TARGET_VARIABLE if source is ParameterSource.ENVIRONMENT else "--target"
        text = f"{name}{str(error).removeprefix('target')}"
        raise exits.CommandError(text, code=exits.INVALID) from error
    return value


_FILES = {
    "--tls-ca": "Call --target with TLS, trusting the authorities in FILE, as PEM.",
    "--tls-certificate": "Show the server this client's certificate chain, as PEM.",
    "--tls-key": "The private key of that certificate, as PEM.",
    "--token-file": "Show --target the token in FILE; by default GRADWIRE_TOKEN or the file that "
    "GRADWIRE_TOKEN_FILE names.",
}


def server_options(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Add --target, --tls-* and --token-file, which reach the command as `server`, a Connection."""

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def connected(**options: Any) -> Any:
            told = {field.name: options.pop(field.name) for field in fields(Connection)}
            return command(server=Connection(**told), **options)

        with_files: Decorated = connected
        for name, text in reversed(_FILES.items()):
            with_files = click.option(name, type=INPUT_FILE, metavar="FILE", help=text)(with_files)

        of_its_own = "" if default else " Without it a server is started for this command."
        return click.option(
            "--target",
            metavar="HOST:PORT",
            callback=check_target,
            default=default,
            show_default=True,
            envvar=TARGET_VARIABLE,
            show_envvar=True,
            help=f"Server to call, or several with commas between.{of_its_own}",
        )(with_files)

    return decorate


def json_option(command: Decorated) -> Decorated:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def operator_option(
    *, multiple: bool = False, text: str = "See `gradwire operators`."
) -> Callable[[Decorated], Decorated]:
    """Add --op."""
    return click.option(
        "--op", "operator", metavar="NAME", required=True, multiple=multiple, help=text
    )


def attribute_option(command: Decorated) -> Decorated:
    """Add --attr."""
    return click.option(
        "--attr",
        "attributes",
        metavar="NAME=VALUE",
        multiple=True,
        help="An attribute; arrays are separated by commas. Once for each attribute.",
    )(command)


def dtype_option(*, multiple: bool = False, text: str) -> Callable[[Decorated], Decorated]:
    """Add --dtype, which reaches the command as a NumPy type, or several."""

    def read(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        del context, parameter
        if multiple:
            return tuple(_DTYPES[name] for name in dict.fromkeys(value))
        return _DTYPES[value]

    return click.option(
        "--dtype",
        "dtypes" if multiple else "dtype",
        type=click.Choice(list(_DTYPES)),
        default=["float32"] if multiple else "float32",
        show_default=True,
        multiple=multiple,
        callback=read,
        help=text,
    )


_DTYPES = {str(dtype): dtype for dtype in DTYPES.values()}


NUMBERS: dict[str, Callable[[str], object]] = {
    "float": float,
    "double": float,
    "int64": int,
    "int32": int,
}
FLAGS = {"true": True, "false": False}


def operator_kind(name: str) -> type[Operator]:
    """Return the class of the operator called `name`."""
    if name in OPERATORS:
        return OPERATORS[name]
    close = get_close_matches(name.lower().replace("-", "_"), OPERATORS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise CommandError(
        f"--op: {name!r} is not an operator; give one of {', '.join(OPERATORS)}{hint}", code=UNKNOWN
    )


def operator_from(kind: type[Operator], assignments: Iterable[str]) -> Operator:
    """Make an operator from assignments such as "mode=bilinear" and "sizes=112,112".

    Raises CommandError where one cannot be read, InvalidRequestError where a value breaks its rule.
    """
    given: dict[str, object] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise CommandError(f"--attr: {assignment!r} has no '='; give NAME=VALUE", code=INVALID)
        if name in given:
            raise CommandError(f"--attr: {name} is given twice; give it once", code=INVALID)
        given[name] = _value(kind, name, text)
    return kind(**given)


def _value(kind: type[Operator], name: str, text: str) -> object:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if name not in fields:
        raise unknown_name(f"operator.{kind.name}", name, fields)
    rule = rule_of(fields[name])
    kind_of_one, array, _ = rule.type_name.partition("[]")
    if kind_of_one == "bool":
        return FLAGS.get(text.lower(), text)
    number = NUMBERS.get(kind_of_one)
    if number is None:
        return text
    try:
        return tuple(map(number, filter(str.strip, text.split(",")))) if array else number(text)
    except ValueError:
        separated = ", separated by commas" if array else ""
        raise CommandError(
            f"--attr {name}: is {text!r}; {rule.wanted}{separated}", code=INVALID
        ) from None


def shape_options(*, input_required: bool) -> Callable[[Decorated], Decorated]:
    """Add --input-shape and --output-shape, the shapes of the operator as it is called."""

    def decorate(command: Decorated) -> Decorated:
        with_output = click.option(
            "--output-shape",
            callback=read_shape,
            metavar="N,N,...",
            help="Shape of the result; may be left out where attributes determine it.",
        )(command)
        return click.option(
            "--input-shape",
            callback=read_shape,
            required=input_required,
            metavar="N,N,...",
            help="Shape of what the operator is given; for a gradient, that of the forward's "
            "output.",
        )(with_output)

    return decorate
