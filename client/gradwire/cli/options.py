"""Options of several commands, their types, and operators from --op and --attr."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gradwire._core.options import read_target
from gradwire._wire.environment import TARGET_VARIABLE, TLS_VARIABLE
from gradwire.cli.connection import Connection
from gradwire.cli.output import UNKNOWN, CommandError, InvalidUsage
from gradwire.ops import OPERATORS, Operator
from gradwire.ops._base import did_you_mean, rule_of, unknown_name
from gradwire.tensors import DTYPES, Shape

Decorated = Callable[..., Any]

INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class OutputFile(click.Path):
    """A file to write, in a folder that already exists.

    The folder is checked before the work begins.

    endings  allowed endings of names; empty for any
    """

    def __init__(self, *endings: str) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(value)
        if value == "-":
            words = "'-' does not stand for standard output here; give the name of a file"
            self.fail(words, param, ctx)
        if self.endings and path.suffix.lower() not in self.endings:
            words = f"is not a name for a picture; end it in {' or '.join(self.endings)}"
            self.fail(f"{str(path)!r} {words}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{str(path)!r} is in a folder that does not exist; make it", param, ctx)
        return super().convert(value, param, ctx)


def _read_shape(text: str) -> Shape:
    """Turn "8,64,56,56" into axis lengths."""
    try:
        lengths = tuple(map(int, text.split(",")))
    except ValueError:
        lengths = (-1,)
    if min(lengths) < 0:
        raise click.BadParameter(f"{text!r} is not a shape; give lengths such as 8,64,56,56")
    return lengths


class Positive(click.FloatRange):
    """Numbers above 0; click takes a NaN for within any range."""

    def __init__(self, most: float | None = None) -> None:
        super().__init__(min=0, min_open=True, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = math.nan
        with suppress(click.BadParameter):
            number = super().convert(value, param, ctx)
        if math.isnan(number):
            most = "" if self.max is None else f", at most {self.max:g}"
            self.fail(f"{value!r} is not a number above 0{most}", param, ctx)
        return number


seconds_option = functools.partial(click.option, type=Positive(), metavar="SECONDS")
# Element types by their names.
DTYPE = click.Choice(list(DTYPES.values()))

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
attribute_option = click.option(
    "--attr",
    "attributes",
    metavar="NAME=VALUE",
    multiple=True,
    help="An attribute; arrays are separated by commas. Once for each attribute.",
)
input_shape_option = functools.partial(
    click.option,
    "--input-shape",
    type=_read_shape,
    metavar="N,N,...",
    help="Shape of what the operator is given; for a gradient, that of the forward's output.",
)
output_shape_option = click.option(
    "--output-shape",
    type=_read_shape,
    metavar="N,N,...",
    help="Shape of the result; may be left out where attributes determine it.",
)
dtype_option = functools.partial(click.option, "--dtype", type=DTYPE, default="float32")
operator_option = functools.partial(click.option, "--op", "operator", metavar="NAME", required=True)
seed_option = click.option("--seed", type=click.IntRange(0), default=0)


def _checked_target(text: str) -> str:
    """Refuse a malformed address."""
    try:
        read_target(text)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("target ")) from error
    return text


_FILES = {
    "--tls-ca": "Use TLS; trust the authorities in this PEM file instead of the system's.",
    "--tls-certificate": "PEM file with this client's certificate chain, for servers that require "
    "client certificates.",
    "--tls-key": "PEM file with the private key of that certificate.",
    "--token-file": "Send the token in this file to --target; by default that of GRADWIRE_TOKEN or "
    "of the file that GRADWIRE_TOKEN_FILE names.",
}


def server_options(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Add --target, --tls-* and --token-file to a command.

    They reach it as `server`, a Connection.
    """

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def connected(**options: Any) -> Any:
            told = {field.name: options.pop(field.name) for field in fields(Connection)}
            return command(server=Connection(**told), **options)

        with_files: Decorated = connected
        for name, text in reversed(_FILES.items()):
            file = click.Path(exists=True, dir_okay=False)
            with_files = click.option(name, type=file, help=text)(with_files)

        with_files = click.option(
            "--tls",
            is_flag=True,
            envvar=TLS_VARIABLE,
            show_envvar=True,
            help="Call --target with TLS; trust the system's authorities.",
        )(with_files)
        of_its_own = "" if default else " Without it a server is started for this command."
        return click.option(
            "--target",
            metavar="HOST:PORT",
            type=_checked_target,
            default=default,
            envvar=TARGET_VARIABLE,
            show_envvar=True,
            help=f"Server to call, or several with commas between.{of_its_own}",
        )(with_files)

    return decorate


def read_operator(name: str, assignments: Iterable[str]) -> Operator:
    """Make the operator called `name` from assignments.

    Raises CommandError for an unknown name.
    """
    if name in OPERATORS:
        return operator_from(OPERATORS[name], assignments)
    raise CommandError(
        f"--op: {name!r} is not an operator; give one of {', '.join(OPERATORS)}"
        f"{did_you_mean(name, OPERATORS)}",
        code=UNKNOWN,
    )


def operator_options(command: Decorated) -> Decorated:
    """Add --op and --attr to a command, which reach it as `operator`."""

    @functools.wraps(command)
    def with_operator(*, operator: str, attributes: tuple[str, ...], **options: Any) -> Any:
        return command(operator=read_operator(operator, attributes), **options)

    return operator_option(help="See `gradwire operators`.")(attribute_option(with_operator))


def operator_from(kind: type[Operator], assignments: Iterable[str]) -> Operator:
    """Make an operator from assignments such as "mode=bilinear" and "sizes=112,112".

    Raises CommandError if one cannot be read, InvalidRequestError if a value breaks its rule.
    """
    given: dict[str, object] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not (name and separator):
            raise InvalidUsage(f"--attr: is {assignment!r}; give NAME=VALUE")
        if name in given:
            raise InvalidUsage(f"--attr: {name} is given twice; give it once")
        given[name] = _value(kind, name, text)
    return kind(**given)


def _value(kind: type[Operator], name: str, text: str) -> object:
    rules = {field.name: rule_of(field) for field in fields(kind)}
    if name not in rules:
        raise unknown_name(f"operator.{kind.name}", name, rules)
    rule = rules[name]
    kind_of_one, array, _ = rule.type_name.partition("[]")
    if kind_of_one == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind_of_one == "enum":
        return text
    number = int if kind_of_one.startswith("int") else float
    try:
        return tuple(map(number, filter(str.strip, text.split(",")))) if array else number(text)
    except ValueError:
        separated = ", separated by commas" if array else ""
        raise InvalidUsage(f"--attr {name}: is {text!r}; {rule.wanted}{separated}") from None
