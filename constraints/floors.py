"""Print the exact minimum versions pyproject.toml promises, as pip constraints.

The rest, test tools and what others bring, is printed as pinned; with --only, it is left out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

HERE = Path(__file__).resolve().parent


def normalized(name: str) -> str:
    """Return a distribution's name in the one spelling PEP 503 gives it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def floors() -> dict[str, str]:
    """Return the version after >= of each dependency and extra, by name."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    requirements = chain(project["dependencies"], *project["optional-dependencies"].values())
    found = (re.match(r"([\w.-]+)>=([\w.]+)", requirement) for requirement in requirements)
    return {normalized(match[1]): match[2] for match in found if match}


def pins() -> dict[str, str]:
    """Return the versions of pinned.txt by name; OpenTelemetry's packages pin one another."""
    lines = (HERE / "pinned.txt").read_text().split()
    found = {normalized(name): version for name, version in (line.split("==") for line in lines)}
    return {name: found[name] for name in found if not name.startswith("opentelemetry-")}


def main() -> None:
    """Print one line for each distribution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="store_true", help="leave out the pins")
    rest = {} if parser.parse_args().only else pins()
    for name, version in sorted((rest | floors()).items()):
        sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main()
