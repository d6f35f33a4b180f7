"""Command line of the server.

Every setting has a flag, a variable and a key of a file.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gradwire._wire.environment import PREFIX, SERVER_VARIABLES, VERSION, unknown_variables
from gradwire.errors import installing
from gradwire_server.config import container_limits
from gradwire_server.config.addresses import is_host_and_port
from gradwire_server.config.settings import Settings, flag, read_config
from gradwire_server.errors import counted
from gradwire_server.processes import gpus, supervisor
from gradwire_server.security.token_command import token


def _options(command: click.Command) -> click.Command:
    command.params.append(
        click.Option(
            ["--config"],
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_use_config,
            help="TOML file of settings, by the flags' names with underscores: max_streams = 32. "
            "Flags and environment variables win.",
        )
    )
    for one in fields(Settings):
        choices = one.metadata["choices"]
        default: object = one.default
        is_flag = isinstance(default, bool)
        name, repeatable = flag(one.name), one.metadata["repeatable"]
        command.params.append(
            click.Option(
                [name if default is not True else f"{name}/--no-{name[2:]}"],
                # Otherwise the default's, which click 8.2.0 needs to find out itself for a flag.
                type=click.Choice(choices) if choices else None,
                is_flag=is_flag,
                multiple=repeatable,
                callback=_joined if repeatable else None,
                default=() if repeatable else default,
                show_default=not is_flag and default != "",
                envvar=f"{PREFIX}{one.name.upper()}",
                show_envvar=True,
                help=one.metadata["help"],
            )
        )
    return command


def _joined(_context: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> str:
    return " ".join(texts)


def _use_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        values = read_config(path)
        repeatable = {one.name for one in fields(Settings) if one.metadata["repeatable"]}
        context.default_map = {
            name: [value] if name in repeatable else value for name, value in values.items()
        }
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.group(
    invoke_without_command=True,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    subcommand_metavar="[token ...]",
)
@click.version_option(VERSION, prog_name="gradwire-server", message="%(prog)s %(version)s")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Shorthand: the port of --address, which has the host.",
)
@click.option("--print-config", is_flag=True, help="Print every setting as JSON and stop.")
@click.option(
    "--compile-only",
    is_flag=True,
    help="Fill the folder of compiled code and stop; starts that find it there are quick.",
)
@click.pass_context
def gradwire_server(
    context: click.Context,
    /,
    *,
    port: int | None,
    print_config: bool,
    compile_only: bool,
    **values: Any,
) -> None:
    """Serve gradients of resampling operators over gRPC.

    Every flag can be given as an environment variable too, or in a file by --config; a flag wins
    over a variable, and that over the file. The server prints
    "gradwire-server listening on HOST:PORT" on stdout once it serves, and logs to stderr. SIGTERM
    or SIGINT stops it gracefully; SIGUSR2 renews several workers one by one.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        if port is not None:
            values["address"] = _address(context, values["address"], port)
        settings = _settings(context, values)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for words in unknown_variables(SERVER_VARIABLES):
        click.echo(f"Warning: {words}", err=True)
    _warn_of_memory(settings)
    if print_config:
        click.echo(json.dumps(settings.described(paths=True), indent=2))
        return
    try:
        if compile_only:
            _compile(settings)
        else:
            _serve(settings, lambda workers: _settings(context, {**values, "workers": workers}))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        raise click.ClickException(str(error)) from error


def _compile(settings: Settings) -> None:
    if settings.compile_cache:
        Path(settings.compile_cache).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=settings.compile_cache).close()
    backend, reason = settings.choose_backend()
    started = time.monotonic()
    backend.warm_up()
    click.echo(f"{backend.name} is ready after {time.monotonic() - started:.1f} s ({reason})")


def read_settings(flags: Sequence[str]) -> Settings:
    """Return the settings of flags and of this process's environment variables.

    Raises ValueError if they are not the server's, or contradict each other.
    """
    command = _options(click.Command("gradwire-server", add_help_option=False))
    try:
        with command.make_context("gradwire-server", list(flags)) as context:
            return _settings(context, context.params)
    except click.ClickException as error:
        raise ValueError(error.format_message()) from error


def _settings(context: click.Context, values: dict[str, Any]) -> Settings:
    """Return the settings, with memory limits.

    Limits that are not given are fitted to the container.

    Raises ValueError if they are invalid, or memory for calls does not hold a message for each
    worker.
    """
    settings = Settings(**values)
    names = ("max_memory_bytes", "max_request_memory_bytes")
    free = [name for name in names if context.get_parameter_source(name) is ParameterSource.DEFAULT]
    workers = max(1, settings.workers)
    least = workers * settings.max_message_bytes
    if "max_memory_bytes" not in free and settings.max_memory_bytes < least:
        raise ValueError(
            f"--max-memory-bytes is {settings.max_memory_bytes}; at least {least} is needed, "
            f"--max-message-bytes for each of {counted(workers, 'worker')}"
        )
    room = container_limits.room_bytes(workers)
    return replace(settings, **{name: min(values[name], room) for name in free})


def _address(context: click.Context, address: str, port: int) -> str:
    """Return the address with another port.

    Raises ValueError where --port does not go with the address.
    """
    if context.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        raise ValueError(f"--port is {port} and --address {address}; give one of them")
    if not is_host_and_port(address):
        raise ValueError(f"--port is {port} and --address {address}; --port needs HOST:PORT there")
    return f"{address.rpartition(':')[0]}:{port}"


def _warn_of_memory(settings: Settings) -> None:
    limit = container_limits.memory_bytes()
    if settings.max_memory_bytes >= limit:
        room = container_limits.room_bytes(max(1, settings.workers))
        click.echo(
            f"Warning: --max-memory-bytes is {settings.max_memory_bytes} and this container's "
            f"limit {limit}; {room} would fit it, which is the default here",
            err=True,
        )


def _serve(settings: Settings, with_workers: Callable[[int], Settings]) -> None:
    for needed in ("grpc_health", "grpc_reflection", "h11", "jinja2", "prometheus_client"):
        if find_spec(needed) is None:
            raise click.ClickException(
                f"{needed} is missing; gradwire-server needs: {installing('server')}"
            )
    if settings.backend == "cuda":
        devices = gpus.chosen(settings)
        settings = with_workers(gpus.worker_count(settings, devices))
        asyncio.run(supervisor.supervise(settings, devices))
    elif settings.workers > 1:
        asyncio.run(supervisor.supervise(settings))
    else:
        from gradwire_server.processes import serve  # noqa: PLC0415 - so that --help works without the extra

        serve.run(serve.serve(settings))


_options(gradwire_server)
gradwire_server.add_command(token)


def main() -> None:
    """Run the command."""
    try:
        gradwire_server.main(prog_name="gradwire-server")
    except KeyboardInterrupt:
        sys.exit(130)
