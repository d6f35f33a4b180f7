"""The version of this distribution, which pyproject.toml states."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    """Return the installed version.

    A source tree that is not installed has a placeholder.
    """
    try:
        return version("gradwire")
    except PackageNotFoundError:
        return "0+source"


VERSION = _installed_version()
