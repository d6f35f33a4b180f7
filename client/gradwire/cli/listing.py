"""What a server tells of itself: `gradwire operators`, `info` and `health`."""

from __future__ import annotations

import dataclasses
import json
import textwrap

import click

from gradwire import AttributeInfo, OperatorInfo
from gradwire.cli.connection import Connection
from gradwire.cli.exits import CODES, CommandError
from gradwire.errors import DeadlineExceededError, UnavailableError, UnsupportedOperatorError
from gradwire.health import SERVING
from gradwire.ops import OPERATORS
from gradwire.ops._attributes import Choice, rule_of

WIDTH = 96
NUMBERS = {"double": "float", "int64": "int", "int32": "int"}


def print_operators(name: str | None, connection: Connection, *, as_json: bool) -> None:
    """Print all operators, or everything about one."""
    with connection.client() as client:
        known = {info.name: info for info in client.operators()}
    if name is not None and name not in known:
        raise CommandError(
            f"the server has no operator {name!r}; it has {', '.join(known)}",
            code=CODES[UnsupportedOperatorError],
        )
    chosen = list(known.values()) if name is None else [known[name]]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(info) for info in chosen], indent=2))
    elif name is None:
        width = max(len(info.name) for info in chosen) + 2
        for info in chosen:
            click.echo(f"{info.name:{width}}{info.summary}")
        click.echo("\n`gradwire operators NAME` tells the attributes of one.")
    else:
        click.echo(_described(chosen[0]))


def print_info(connection: Connection, *, as_json: bool) -> None:
    """Print the server's version, backend, operators and limits."""
    with connection.client() as client:
        info = client.server_info()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(info), indent=2))
        return
    click.echo(f"gradwire {info.version}, numerics version {info.numerics_version}")
    click.echo(f"backend    {info.backend}: {info.backend_reason}")
    click.echo(f"operators  {', '.join(info.operators)}")
    click.echo("limits")
    for limit, value in dataclasses.asdict(info.limits).items():
        click.echo(f"  {limit:26}{value:>16,}")


def print_health(connection: Connection, *, timeout_s: float, wait_s: float | None) -> None:
    """Print the server's health; raise CommandError unless it is SERVING."""
    if wait_s is not None:
        _tell_of_wait(connection, timeout_s=min(timeout_s, wait_s))
        with connection.client() as client:
            client.wait_ready(wait_s)
    status = connection.health(timeout_s=timeout_s)
    if status != SERVING:
        raise CommandError(
            f"the server at {connection.target} is {status}", code=CODES[UnavailableError]
        )
    click.echo(status)


def _tell_of_wait(connection: Connection, *, timeout_s: float) -> None:
    """Say on stderr what is waited for, if anything is."""
    try:
        status = connection.health(timeout_s=timeout_s)
    except (UnavailableError, DeadlineExceededError, CommandError) as error:
        if isinstance(error, CommandError) and error.code != CODES[UnavailableError]:
            raise
        told = "no server answers yet"
    else:
        if status == SERVING:
            return
        told = (
            f"the server answers {status}; it is starting (the first start compiles for about "
            "30 s) or stopping"
        )
    click.echo(f"Waiting for {connection.target}: {told}.", err=True)


def _ranks(info: OperatorInfo) -> str:
    few, many = info.min_rank, info.max_rank
    return f"{few}" if few == many else f"{few} to {many}"


def _described(info: OperatorInfo) -> str:
    lines = [
        f"{info.name}",
        f"  {info.summary}",
        "",
        f"  {'forward' if info.gradient else 'gradient':14}{info.counterpart}",
        f"  {'axes':14}{_ranks(info)}",
        f"  {'types':14}{', '.join(info.data_types)}",
        f"  {'output shape':14}{'always needed' if info.output_required else 'told by attributes'}",
        f"  {'source':14}{info.source}",
        "",
    ]
    for attribute in info.attributes:
        values, default = _words(info.name, attribute)
        lines.append(f"  --attr {attribute.name}={values}")
        notes = f"{attribute.description} {default}"
        lines += textwrap.wrap(notes, WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
    return "\n".join(lines)


def _words(operator: str, attribute: AttributeInfo) -> tuple[str, str]:
    """Return an attribute's values and default as --attr takes them, where this SDK knows it."""
    values, default = "|".join(attribute.allowed_values) or attribute.type, attribute.default_value
    kind = OPERATORS.get(operator)
    for field in dataclasses.fields(kind) if kind is not None else ():
        rule = rule_of(field)
        if field.name == attribute.name and isinstance(rule, Choice):
            values = "|".join(rule.allowed)
            default = field.default if isinstance(field.default, str) else default
    if values == "bool":
        values = "true|false"
    number, array, _ = values.partition("[]")
    values = NUMBERS.get(number, number) + (",..." if array else "")
    return values, "Required." if attribute.required else f"Default: {default}."
