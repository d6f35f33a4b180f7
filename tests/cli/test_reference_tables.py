"""The reference pages' tables have every setting, command and reason."""

from __future__ import annotations

from dataclasses import fields

import reference_tables

from gradwire import v1
from gradwire.cli.app import commands
from gradwire_server.config.settings import Settings, flag


def test_every_setting_has_a_row() -> None:
    table = reference_tables.settings()
    assert [one.name for one in fields(Settings) if f"| `{flag(one.name)}` |" not in table] == []


def test_every_command_has_a_section() -> None:
    text = reference_tables.cli()
    names = [*(f"gradwire {name}" for name in commands.commands), "gradwire-server token create"]
    assert [name for name in names if f"## {name}\n" not in text] == []


def test_every_reason_has_a_row() -> None:
    table = reference_tables.errors()
    reasons = [name.removeprefix("ERROR_REASON_") for name in v1.ErrorReason.keys()]  # noqa: SIM118 - an enum of protobuf
    assert [one for one in reasons[1:] if f"| `{one}` |" not in table] == []
