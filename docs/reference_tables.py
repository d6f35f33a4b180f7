"""Tables of the reference pages, made from the code: settings, commands and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import click

from gradwire._wire.statuses import BY_REASON
from gradwire.cli.app import commands
from gradwire_server import errors as server_errors
from gradwire_server.command import gradwire_server
from gradwire_server.config.settings import Settings, flag
from gradwire_server.rpc.status_map import INTERPRETERS

PROTO = Path(__file__).parents[1] / "proto" / "gradwire" / "v1"


def settings() -> str:
    """Return the table of the server's settings."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for one in fields(Settings):
        default = one.default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        choices = one.metadata["choices"]
        text = one.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
        rows.append(f"| `{flag(one.name)}` | {f'`{shown}`' if shown else ''} | {_cell(text)} |")
    return "\n".join(rows)


def cli() -> str:
    """Return a section with the help text of each command of `gradwire` and `gradwire-server`."""
    parts: list[str] = []
    for program, group in (("gradwire", commands), ("gradwire-server", gradwire_server)):
        for name, command in _walk(program, group):
            # Commands keep the option of the first context that asks for it.
            names = group.context_settings["help_option_names"]
            context = click.Context(
                command, info_name=name, max_content_width=96, help_option_names=names
            )
            parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if name != "gradwire-server":  # whose flags are on the page of settings
        yield name, command
    if isinstance(command, click.Group):
        for child, one in sorted(command.commands.items()):
            yield from _walk(f"{name} {child}", one)


def errors() -> str:
    """Return the table of reasons: the status, the meaning and the SDK's exception of each."""
    text = (PROTO / "error_reason.proto").read_text(encoding="utf-8")
    kinds = [kind for kind in vars(server_errors).values() if hasattr(kind, "status")]
    named = [*(kind.status for kind in kinds), *(told[:2] for told in INTERPRETERS.values())]
    statuses = {reason: status for status, reason in named}
    rows = ["| reason | gRPC status | meaning | exception of the SDK |", "|---|---|---|---|"]
    for comment, name in re.findall(r"((?:  // .*\n)+)  ERROR_REASON_(\w+) = \d+;", text):
        if name not in BY_REASON:
            continue
        meaning = " ".join(line.strip().removeprefix("// ") for line in comment.splitlines())
        error = BY_REASON[name].__name__
        rows.append(
            f"| `{name}` | `{statuses[name]}` | {_cell(meaning)} | {{py:exc}}`~gradwire.{error}` |"
        )
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", r"\<")


TABLES: dict[str, Callable[[], str]] = {"cli": cli, "errors": errors, "settings": settings}
