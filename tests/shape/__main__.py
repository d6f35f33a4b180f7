"""The size of the project as one table beside baseline.json: tokens, modules, complex functions.

PYTHONPATH=tests python -m shape [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shape import source

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).with_name("baseline.json")
_MOST_COMPLEXITY = 12
_GENERATED = "client/gradwire/v1"
_PRODUCT = ("client/gradwire", "server/gradwire_server", "server/gradwire_ray")

Figures = dict[str, dict[str, int]]


def sizes(root: Path) -> Figures:
    """Return tokens and modules of each folder, its folders included, and of the roots alone."""
    figures: Figures = {"tokens": {}, "modules": {}}
    for top in (*_PRODUCT, "tests", "benchmarks"):
        for one in source.modules(root / top, without=[root / _GENERATED]):
            parts = one.relative_to(root / top).parts
            folder = f"{top}/{parts[0]}" if len(parts) > 1 else f"{top}, its root"
            counted = {"tokens": source.tokens(one.read_text(encoding="utf-8")), "modules": 1}
            for name, count in counted.items():
                for row in (folder, f"{top}, all"):
                    figures[name][row] = figures[name].get(row, 0) + count
    return figures


def complex_functions(root: Path) -> list[str]:
    """Let ruff judge complexity, whatever pyproject.toml and remarks leave out."""
    limit = f"--config=lint.mccabe.max-complexity={_MOST_COMPLEXITY}"
    found = subprocess.run(  # noqa: S603 - our own tool
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--quiet"),
            *("--select=C901", limit, "--output-format=concise", f"--extend-exclude={_GENERATED}"),
            *_PRODUCT,
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode > 1 or found.stderr:
        raise RuntimeError(f"ruff did not run; `make install` installs it: {found.stderr}")
    return found.stdout.splitlines()


def table(figures: Figures, baseline: Figures, name: str) -> str:
    """Set today's figures beside the baseline's; "-" where one of them has none."""
    lines = [f"{'':48} {'today':>8} {name:>10}"]
    for section in dict.fromkeys((*figures, *baseline)):
        today, before = figures.get(section, {}), baseline.get(section, {})
        lines.append(section)
        lines += [
            f"  {row:46} {today.get(row, '-'):>8} {before.get(row, '-'):>10}"
            for row in dict.fromkeys((*today, *before))
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write figures and complex functions there, too")
    arguments = parser.parse_args()
    figures, too_complex = sizes(ROOT), complex_functions(ROOT)
    baseline: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    sys.stdout.write(
        "Tokens are those of kind NAME, NUMBER, STRING and OP, an f-string as one; no comments,\n"
        "docstrings, line ends or indentation. The generated gradwire.v1 is in no figure.\n"
        f"{baseline['name']} is commit {baseline['commit']}.\n\n"
        f"{table(figures, baseline['figures'], baseline['name'])}\n"
        f"functions of a complexity above {_MOST_COMPLEXITY}: {len(too_complex)}\n"
        + "".join(f"  {line}\n" for line in too_complex)
    )
    if arguments.json:
        found = {"figures": figures, "complex functions": too_complex}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
