"""Which frameworks are installed, and in which release."""

from __future__ import annotations

import importlib.metadata

# Names of releases where they are not the framework's own.
_RELEASES = {"onednn": ("onednn-cpu-gomp",), "tensorflow": ("tensorflow-cpu", "tensorflow")}


def version(framework: str) -> str | None:
    """Return a framework's release, None where it is not installed."""
    for release in _RELEASES.get(framework, (framework,)):
        try:
            return importlib.metadata.version(release)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
