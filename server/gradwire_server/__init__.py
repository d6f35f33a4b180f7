"""The gradwire server, and the same service in process as LocalClient."""

from __future__ import annotations

from gradwire_server.local_client import LocalClient

__all__ = ["LocalClient"]
