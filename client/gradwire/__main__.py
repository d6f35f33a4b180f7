"""`python -m gradwire`: the command line."""

from __future__ import annotations

from gradwire.cli import main

main()
