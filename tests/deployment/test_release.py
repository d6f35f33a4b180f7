"""What a release says of itself agrees: version, supported versions, and what it carries."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_citation_has_the_package_s_version_and_license() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r"^(\w+): (.*)$", citation, re.MULTILINE))
    assert fields["version"] == PROJECT["project"]["version"]
    assert fields["license"] == PROJECT["project"]["license"]


def test_the_stability_page_has_the_oldest_supported_versions() -> None:
    page = (ROOT / "docs/stability.md").read_text()
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    floors = dict(re.findall(r"^(\w+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in page
    assert f"| NumPy | {floors['numpy']} |" in page
    assert f"| grpcio, protobuf | {floors['grpcio']}, {floors['protobuf']} |" in page
    assert f"| numba | {floors['numba']}, below" in page


def test_wheels_and_images_carry_no_pages() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["client/gradwire", "server/gradwire_ray", "server/gradwire_server"]
    copied = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in copied
    assert not [line for line in copied if line.startswith("!docs")]
