"""`gradwire-server token`: makes the tokens of those who may call, and takes them back."""

from __future__ import annotations

import secrets
from datetime import UTC, date, datetime
from pathlib import Path

import click

from gradwire_server.tokens import Scope, add_token, read_scopes, revoke_token


def _scopes(context: click.Context, parameter: click.Parameter, value: str) -> frozenset[Scope]:
    try:
        scopes = read_scopes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if not scopes:
        raise click.BadParameter("a token without a scope opens nothing", context, parameter)
    return scopes


def _last_day(
    context: click.Context, parameter: click.Parameter, value: datetime | None
) -> date | None:
    if value is None:
        return None
    if value.date() < datetime.now(UTC).date():
        raise click.BadParameter(f"{value.date()} is over", context, parameter)
    return value.date()


def _print(made: str, name: str, path: Path) -> None:
    """Show a token; take it out of the file again where nobody can have seen it."""
    try:
        click.echo(made)
    except OSError as error:
        revoke_token(path, name)
        raise click.ClickException(
            f"the token cannot be printed: {error.strerror}; {name} is not in {path}"
        ) from error


@click.command()
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
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tokens"),
    show_default=True,
    envvar="GRADWIRE_TOKENS",
    show_envvar=True,
    help="The file of the setting --tokens; it is made where there is none.",
)
@click.option("--revoke", metavar="NAME", help="Take a token out of the file instead.")
def token(
    *,
    name: str | None,
    scopes: frozenset[Scope],
    expires: date | None,
    path: Path,
    revoke: str | None,
) -> None:
    """Make a token and print it: 32 random bytes, of which the file keeps the SHA-256.

    It is printed this once. Servers with this file take it at once, and one that was revoked no
    more within a second.
    """
    if revoke is not None and (name is not None or expires is not None):
        raise click.UsageError("--revoke takes a token out; --name and --expires make one")
    try:
        if revoke is not None:
            revoke_token(path, revoke)
            click.echo(f"{revoke} is revoked in {path}", err=True)
            return
        name = f"token-{secrets.token_hex(4)}" if name is None else name
        made = add_token(path, name=name, scopes=scopes, expires=expires)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
    _print(made, name, path)
    until = "" if expires is None else f" until {expires}"
    click.echo(f"{name} ({', '.join(sorted(scopes))}) is in {path}{until}", err=True)
