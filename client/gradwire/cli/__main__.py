"""`python -m gradwire.cli`."""

from __future__ import annotations

from gradwire.cli.app import main

main()
