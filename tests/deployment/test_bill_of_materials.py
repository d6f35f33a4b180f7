"""The bill of materials that lies in an image."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[2] / "docker" / "sbom.py"
_DPKG = """\
Package: libc++1
Status: install ok installed
Architecture: amd64
Version: 1:14.0-2
Description: a library
 in several lines

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    dpkg = tmp_path_factory.mktemp("dpkg") / "status"
    dpkg.write_text(_DPKG, encoding="utf-8")
    command = [sys.executable, str(_SCRIPT), "--dpkg", str(dpkg)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def test_every_distribution_is_in_it_with_its_version(bill: dict[str, Any]) -> None:
    main = bill["metadata"]["component"]
    found = {(one["name"], one["version"]) for one in (main, *bill["components"])}
    assert {(one.name, one.version) for one in distributions()} <= found


def test_packages_of_the_system_are_in_it_while_they_are_installed(bill: dict[str, Any]) -> None:
    found = {one["name"]: one["purl"] for one in bill["components"]}
    # https://github.com/package-url/purl-spec: percent-encoded but for colons
    assert found["libc++1"] == "pkg:deb/debian/libc%2B%2B1@1:14.0-2?arch=amd64"
    assert "gone" not in found
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(references) == len(set(references))
