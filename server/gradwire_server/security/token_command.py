"""`gradwire-server token`: creates, lists and revokes tokens."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import click

from gradwire._wire.files import read_small
from gradwire_server.config.tokens import Scope, add_token, read_scopes, read_tokens, revoke_token
from gradwire_server.security.certificates import reason


def _scopes(_context: click.Context, _: click.Parameter, value: str) -> frozenset[Scope]:
    try:
        scopes = read_scopes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not scopes:
        raise click.BadParameter("a token without a scope opens nothing")
    return scopes


def _last_day(_context: click.Context, _: click.Parameter, value: datetime | None) -> date | None:
    if value is None:
        return None
    if value.date() < datetime.now(UTC).date():
        raise click.BadParameter(f"{value.date()} is over")
    return value.date()


class _CreatesByDefault(click.Group):
    """A group in which options without a command are those of `create`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; insert `create` before options."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["create", *args]
        return super().parse_args(ctx, args)


@contextmanager
def _named(path: Path) -> Generator[None]:
    """Convert errors of a file to one line that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {reason(error)}") from error


_file = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tokens"),
    show_default=True,
    envvar="GRADWIRE_TOKENS",
    show_envvar=True,
    help="The file of the setting --tokens.",
)


@click.group(
    cls=_CreatesByDefault,
    short_help="Make the tokens of those who may call, and take them back.",
    subcommand_metavar="[create|list|revoke] ...",
)
def token() -> None:
    """Make, list and revoke the tokens of callers.

    Without a command, options are those of `create`. Servers with this file follow it within a
    second, without a restart.
    """


@token.command(short_help="Make a token and print it.")
@click.option("--name", help="What the file and the log call it; by default one by chance.")
@click.option(
    "--scopes",
    default=Scope.EVALUATE.value,
    show_default=True,
    callback=_scopes,
    help="What it opens: evaluate, inspect, or both with a comma between.",
)
@click.option(
    "--expires",
    type=click.DateTime(["%Y-%m-%d"]),
    callback=_last_day,
    help="The last day on which it is taken, UTC; by default it has no end.",
)
@_file
def create(*, name: str | None, scopes: frozenset[Scope], expires: date | None, path: Path) -> None:
    """Make a token and print it.

    The token has 32 random bytes, of which the file keeps the SHA-256. It is printed only once, and
    servers accept it at once. A missing file is created.
    """
    with _named(path):
        name = f"token-{secrets.token_hex(4)}" if name is None else name
        made = add_token(path, name=name, scopes=scopes, expires=expires)
    try:
        click.echo(made)
    except OSError as error:
        revoke_token(path, name)
        raise click.ClickException(
            f"the token cannot be printed: {error.strerror}; {name} is not in {path}"
        ) from error
    until = "" if expires is None else f" until {expires}"
    click.echo(f"{name} ({', '.join(sorted(scopes))}) is in {path}{until}", err=True)


@token.command(name="list", short_help="List the tokens in the file.")
@_file
def list_(*, path: Path) -> None:
    """List the tokens in the file.

    Each has a name, its scopes and its last day, if it has one. The tokens themselves are stored
    nowhere.
    """
    with _named(path):
        tokens = read_tokens(read_small(path))
    today = datetime.now(UTC).date()
    for one in tokens:
        words = [one.name, ",".join(sorted(one.scopes))]
        if one.expires is not None:
            words.append(f"{'expired' if one.expires < today else 'until'} {one.expires}")
        click.echo("  ".join(words))


@token.command(short_help="Take a token out of the file.")
@click.argument("name")
@_file
def revoke(*, name: str, path: Path) -> None:
    """Remove the token called NAME from the file.

    Servers refuse it within a second.
    """
    with _named(path):
        revoke_token(path, name)
    click.echo(f"{name} is revoked in {path}", err=True)
