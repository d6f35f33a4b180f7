"""Prints a software bill of materials as CycloneDX 1.6: Python, its packages here, and Debian's.

    python sbom.py [--dpkg /var/lib/dpkg/status]

Nothing in it varies between two runs. What a package bundles, such as LLVM in llvmlite, is not
listed by itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from urllib.parse import quote

_MAIN = "gradwire"


def components(dpkg: Path) -> list[dict[str, object]]:
    """Return a component for each package, without the main one, ordered by package URL.

    dpkg  the distribution's list of what is installed; a missing file stands for none
    """
    python = _component("python", platform.python_version(), "pkg:generic/python")
    debian = _debian(dpkg) if dpkg.exists() else ()
    found = [python, *(_wheel(one) for one in distributions() if one.name != _MAIN), *debian]
    return sorted(found, key=lambda one: str(one["purl"]))


def document(dpkg: Path) -> dict[str, object]:
    """Return the whole document."""
    main = _component(_MAIN, version(_MAIN), f"pkg:pypi/{_MAIN}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": main | {"type": "application"}},
        "components": components(dpkg),
    }


def _component(name: str, release: str, package_url: str, query: str = "") -> dict[str, object]:
    # https://github.com/package-url/purl-spec: what is not unreserved is percent-encoded.
    purl = f"{package_url}@{quote(release, safe=':')}{query}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": release, "purl": purl}


def _wheel(one: Distribution) -> dict[str, object]:
    normalized = re.sub(r"[-_.]+", "-", one.name).lower()
    found = _component(one.name, one.version, f"pkg:pypi/{normalized}")
    field = "License-Expression"
    if field not in one.metadata:
        return found
    return found | {"licenses": [{"expression": one.metadata[field]}]}


def _debian(dpkg: Path) -> Iterator[dict[str, object]]:
    for block in dpkg.read_text(encoding="utf-8").strip().split("\n\n"):
        fields = HeaderParser().parsestr(block)
        if fields["Status"] == "install ok installed":
            url = f"pkg:deb/debian/{quote(fields['Package'])}"
            query = f"?arch={fields['Architecture']}"
            yield _component(fields["Package"], fields["Version"], url, query)


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dpkg", type=Path, default=Path("/var/lib/dpkg/status"))
    sys.stdout.write(json.dumps(document(parser.parse_args().dpkg), indent=1) + "\n")


if __name__ == "__main__":
    main()
