"""`python -m gradwire.cli`."""

from __future__ import annotations

from gradwire.cli import main

main()
