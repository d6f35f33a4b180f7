"""Options of several commands, their types, and operators from --op and --attr."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gradwire._wire.environment import TARGET_VARIABLE, TLS_VARIABLE
from gradwire.cli.connection import Connection
from gradwire.cli.output import UNKNOWN, CommandError, InvalidUsage
from gradwire.ops import OPERATORS, Operator
from gradwire.ops._base import Attribute, Number, did_you_mean, rule_of
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
        words = ""
        if value == "-":
            words = "does not stand for standard output here; give the name of a file"
        elif self.endings and path.suffix.lower() not in self.endings:
            words = f"is not a name for a picture; end it in {' or '.join(self.endings)}"
        elif not path.parent.is_dir():
            words = "is in a folder that does not exist; make it"
        if words:
            self.fail(f"{value!r} {words}", param, ctx)
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
    """Numbers above 0: click takes a NaN for within any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


seconds_option = functools.partial(click.option, type=Positive(0, min_open=True), metavar="SECONDS")
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
dtype_option = functools.partial(
    click.option, "--dtype", type=click.Choice(list(DTYPES.values())), default="float32"
)
seed_option = click.option("--seed", type=click.IntRange(0), default=0)


_file_option = functools.partial(click.option, type=click.Path(exists=True, dir_okay=False))


def server_options(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Add --target, --tls-* and --token-file to a command.

    They reach it as `server`, a Connection.
    """
    of_its_own = "" if default else " Without it a server is started for this command."

    def decorate(command: Decorated) -> Decorated:
        @click.option(
            "--target",
            metavar="HOST:PORT",
            default=default,
            envvar=TARGET_VARIABLE,
            show_envvar=True,
            help=f"Server to call, or several with commas between.{of_its_own}",
        )
        @click.option(
            "--tls",
            is_flag=True,
            envvar=TLS_VARIABLE,
            show_envvar=True,
            help="Call --target with TLS; trust the system's authorities.",
        )
        @_file_option(
            "--tls-ca",
            help="Use TLS; trust the authorities in this PEM file instead of the system's.",
        )
        @_file_option(
            "--tls-certificate",
            help="PEM file with this client's certificate chain, for servers that require client "
            "certificates.",
        )
        @_file_option("--tls-key", help="PEM file with the private key of that certificate.")
        @_file_option(
            "--token-file",
            help="Send the token in this file to --target; by default that of GRADWIRE_TOKEN or of "
            "the file that GRADWIRE_TOKEN_FILE names.",
        )
        @functools.wraps(command)
        def connected(**options: Any) -> Any:
            told = {field.name: options.pop(field.name) for field in fields(Connection)}
            return command(server=Connection(**told), **options)

        return connected

    return decorate


def check_known(name: str, known: Collection[str]) -> None:
    """Raise CommandError unless an operator is known."""
    if name not in known:
        hint = did_you_mean(name, known)
        words = f"{name!r} is not an operator; give one of {', '.join(known)}{hint}"
        raise CommandError(words, code=UNKNOWN)


def read_operator(name: str, assignments: Iterable[str]) -> Operator:
    """Make the operator called `name` from assignments."""
    check_known(name, OPERATORS)
    return operator_from(OPERATORS[name], assignments)


def operator_options(command: Decorated) -> Decorated:
    """Add --op and --attr to a command, which reach it as `operator`."""

    @click.option(
        "--op", "operator", metavar="NAME", required=True, help="See `gradwire operators`."
    )
    @attribute_option
    @functools.wraps(command)
    def with_operator(*, operator: str, attributes: tuple[str, ...], **options: Any) -> Any:
        return command(operator=read_operator(operator, attributes), **options)

    return with_operator


def operator_from(kind: type[Operator], assignments: Iterable[str]) -> Operator:
    """Make an operator from assignments such as "mode=bilinear" and "sizes=112,112".

    Raises InvalidUsage for a malformed assignment, InvalidRequestError for a wrong value.
    """
    rules = {field.name: rule_of(field) for field in fields(kind)}
    given: dict[str, object] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not (name and separator):
            raise InvalidUsage(f"--attr: is {assignment!r}; give NAME=VALUE")
        if name in given:
            raise InvalidUsage(f"--attr: {name} is given twice; give it once")
        given[name] = _value(rules.get(name), text)
    return kind(**given)


def _value(rule: Attribute | None, text: str) -> object:
    """Read a value; return a wrong text unchanged: the operator refuses it."""
    if not isinstance(rule, Number):
        return {"true": True, "false": False}.get(text.lower(), text)
    number = int if rule.integer else float
    try:
        if rule.most is None:
            return number(text)
        return tuple(map(number, filter(str.strip, text.split(","))))
    except ValueError:
        return text
