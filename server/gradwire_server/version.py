"""The version of this distribution, which pyproject.toml states."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("gradwire")
