"""`python -m gradwire_server`."""

from __future__ import annotations

from gradwire_server.command import main

main()
