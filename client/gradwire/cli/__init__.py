"""The command line, `gradwire`; `python -m gradwire` is the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program; exit with a code of output.HELP."""
    # grpc reads it on import; its log lines would precede the error message.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gradwire.cli import app  # noqa: PLC0415 - see above

    app.main(arguments)
