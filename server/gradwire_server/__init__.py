"""The gradwire server, and the same service in process as LocalClient."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire_server.local_client import LocalClient

__all__ = ["LocalClient"]


def __getattr__(name: str) -> object:
    """Import LocalClient when it is asked for: the command is there sooner without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gradwire_server.local_client import LocalClient  # noqa: PLC0415 - see above

    return LocalClient
