"""The command line, `gradwire`; `python -m gradwire` is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from gradwire._wire.environment import configure_grpc


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of output.HELP."""
    configure_grpc()
    from gradwire.cli import app  # noqa: PLC0415 - imports grpc

    app.main(arguments)
