"""The bill of materials that lies in an image."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

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


def test_every_distribution_and_installed_package_of_the_system_is_in_it(tmp_path: Path) -> None:
    dpkg = tmp_path / "status"
    dpkg.write_text(_DPKG, encoding="utf-8")
    command = [sys.executable, str(_SCRIPT), "--dpkg", str(dpkg)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    bill = json.loads(told.stdout)
    every = [bill["metadata"]["component"], *bill["components"]]
    versions = {(one["name"], one["version"]) for one in every}
    assert {(one.name, one.version) for one in distributions()} <= versions
    found = {one["name"]: one["purl"] for one in every}
    # https://github.com/package-url/purl-spec: percent-encoded but for colons
    assert found["libc++1"] == "pkg:deb/debian/libc%2B%2B1@1:14.0-2?arch=amd64"
    assert "gone" not in found
    assert len({one["bom-ref"] for one in every}) == len(every)
