"""The gradwire server, and the same service in process as LocalClient."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire_server.errors import DeviceLostError
    from gradwire_server.local_client import LocalClient

__all__ = ["DeviceLostError", "LocalClient"]

_MODULES = {"DeviceLostError": "errors", "LocalClient": "local_client"}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that the command starts sooner."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
