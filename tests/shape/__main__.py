"""The shape of the project as one table: sizes, layers, names, and what a call crosses.

    PYTHONPATH=tests python -m shape [--json FILE]

A report to read beside baseline.json. It fails only where a module has more than 700 lines.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shape import frames, source

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).with_name("baseline.json")
MOST_LINES = 700
_MOST_COMPLEXITY = 12
_CONTRACT = "the server is layered"
_GENERATED = "client/gradwire/v1"
_PRODUCT = ("client/gradwire", "server/gradwire_server", "server/gradwire_ray")
_CODE = (*_PRODUCT, "tests", "benchmarks")


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a tree.

    figures  numbers, by section and name
    lists    what stands behind some of them, a line each
    """

    figures: Mapping[str, Mapping[str, int]]
    lists: Mapping[str, list[str]]


def source_shape(root: Path) -> Shape:
    """Count what can be counted without running anything but ruff."""
    tokens, modules = _sizes(root)
    texts = _texts(root, _CODE)
    product = _texts(root, _PRODUCT)
    repeated = source.repeated_classes(product.values())
    callers = source.backend_callers(
        {name: text for name, text in product.items() if "/backends/" not in name}
    )
    complex_ones = source.complex_functions(_ruff(root), root)
    long = source.longer_than(MOST_LINES, texts)
    contract = (root / "pyproject.toml").read_text(encoding="utf-8")
    rules = {
        f'layers of "{_CONTRACT}"': source.layers(contract, _CONTRACT),
        "class names occurring more than once": len(repeated),
        "most classes of one name": max(repeated.values(), default=1),
        "callers of a backend's apply or accumulate": len(callers),
        f"functions of a complexity above {_MOST_COMPLEXITY}": len(complex_ones),
        f"modules of more than {MOST_LINES} lines": len(long),
        "lines of the longest module": max(len(text.splitlines()) for text in texts.values()),
    }
    lists = {
        "class names occurring more than once": [f"{n} {name}" for name, n in repeated.items()],
        "callers of a backend's apply or accumulate": callers,
        f"functions of a complexity above {_MOST_COMPLEXITY}": complex_ones,
        f"modules of more than {MOST_LINES} lines": [f"{n} {name}" for name, n in long.items()],
    }
    return Shape({"tokens": tokens, "modules": modules, "rules": rules}, lists)


def _sizes(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return tokens and modules of each folder, its folders included, and of the roots alone."""
    tokens: dict[str, int] = {}
    modules: dict[str, int] = {}
    for top in _CODE:
        groups = source.folders(root / top, without=[root / _GENERATED])
        counts = {
            name: sum(source.tokens(one.read_text(encoding="utf-8")) for one in group)
            for name, group in groups.items()
        }
        for name in sorted(groups):
            label = f"{top}/{name}" if name else f"{top}, its root"
            tokens[label], modules[label] = counts[name], len(groups[name])
        if groups:
            tokens[f"{top}, all"] = sum(counts.values())
            modules[f"{top}, all"] = sum(map(len, groups.values()))
    return tokens, modules


def _texts(root: Path, tops: tuple[str, ...]) -> dict[str, str]:
    return {
        str(one.relative_to(root)): one.read_text(encoding="utf-8")
        for top in tops
        for one in source.modules(root / top, without=[root / _GENERATED])
    }


def _ruff(root: Path) -> str:
    """Let ruff judge complexity, whatever pyproject.toml and remarks leave out."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--quiet"]
    options = [f"--config=lint.mccabe.max-complexity={_MOST_COMPLEXITY}", "--select=C901"]
    where = [f"--extend-exclude={_GENERATED}", *_PRODUCT]
    found = subprocess.run(  # noqa: S603 - our own tool
        [*command, *options, "--output-format=json", *where],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if found.returncode > 1 or not found.stdout:
        raise RuntimeError("ruff did not run; `make install` installs it")
    return found.stdout


def call_figures(calls: Mapping[str, frames.Crossed]) -> dict[str, dict[str, int]]:
    """Arrange what calls crossed as sections of figures."""
    return {
        "distinct modules of one call": {name: one.modules for name, one in calls.items()},
        "frames of one call": {name: one.frames for name, one in calls.items()},
        "frames in the backend": {
            name: one.backend for name, one in calls.items() if name.endswith("server")
        },
        "frames in other code": {name: one.others for name, one in calls.items()},
    }


def table(
    figures: Mapping[str, Mapping[str, int]], baseline: Mapping[str, Mapping[str, int]], name: str
) -> str:
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


def main() -> int:
    """Print the table, and the lists behind it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write figures and lists there, too")
    arguments = parser.parse_args()
    shape = source_shape(ROOT)
    with frames.recorded_server() as server:
        calls = frames.measure(server)
    figures = {**shape.figures, **call_figures(calls)}
    baseline: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    sys.stdout.write(f"{_NOTES.format(python=platform.python_version(), **baseline)}\n\n")
    sys.stdout.write(f"{table(figures, baseline['figures'], baseline['name'])}\n")
    for title, lines in shape.lists.items():
        if lines:
            sys.stdout.write("\n".join(["", title, *(f"  {line}" for line in lines), ""]))
    if arguments.json:
        found = {"python": platform.python_version(), "figures": figures, "lists": shape.lists}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if shape.lists[f"modules of more than {MOST_LINES} lines"] else 0


_NOTES = """\
Tokens   those of kind NAME, NUMBER, STRING and OP, an f-string as one; no comments, docstrings,
         line ends or indentation. The generated gradwire.v1 is in no figure but "other code".
Frames   Python frames entered or resumed, with backend numpy_cpu; the median of 7 repeats.
Today    Python {python}; {name}: commit {commit}, Python {measured_with}."""


if __name__ == "__main__":
    sys.exit(main())
