"""The command line, `gradwire`; `python -m gradwire.cli` is the same."""

from __future__ import annotations

from gradwire.cli.app import main

__all__ = ["main"]
