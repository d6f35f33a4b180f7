"""The shape of the project as one table: sizes, layers, names, and what a call crosses.

    PYTHONPATH=tests python -m shape [--json FILE]

A report to read beside baseline.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shape import frames, layers, source

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).with_name("baseline.json")
_MOST_COMPLEXITY = 12
_GENERATED = "client/gradwire/v1"
_PRODUCT = ("client/gradwire", "server/gradwire_server", "server/gradwire_ray")
_CODE = (*_PRODUCT, "tests", "benchmarks")

Figures = dict[str, dict[str, int]]


def source_shape(root: Path) -> tuple[Figures, dict[str, list[str]]]:
    """Count what needs nothing but ruff; return figures, and lists that stand behind some."""
    tokens, modules = _sizes(root)
    texts = {
        str(one.relative_to(root)): one.read_text(encoding="utf-8")
        for top in _PRODUCT
        for one in source.modules(root / top, without=[root / _GENERATED])
    }
    repeated = source.repeated_classes(texts.values())
    computing = {name: text for name, text in texts.items() if "/backends/" not in name}
    lists = {
        "class names occurring more than once": [f"{n} {name}" for name, n in repeated.items()],
        "callers of a backend's apply or accumulate": source.backend_callers(computing),
        f"functions of a complexity above {_MOST_COMPLEXITY}": source.complex_functions(
            _ruff(root), root
        ),
    }
    rules = {
        f'layers of "{layers.CONTRACT}"': len(layers.layers()),
        "most classes of one name": max(repeated.values(), default=1),
        **{name: len(found) for name, found in lists.items()},
    }
    return {"tokens": tokens, "modules": modules, "rules": rules}, lists


def _sizes(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return tokens and modules of each folder, its folders included, and of the roots alone."""
    tokens: dict[str, int] = {}
    modules: dict[str, int] = {}
    for top in _CODE:
        for name, group in sorted(source.folders(root / top, without=[root / _GENERATED]).items()):
            count = sum(source.tokens(one.read_text(encoding="utf-8")) for one in group)
            for label in (f"{top}/{name}" if name else f"{top}, its root", f"{top}, all"):
                tokens[label] = tokens.get(label, 0) + count
                modules[label] = modules.get(label, 0) + len(group)
    return tokens, modules


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


def call_figures(calls: Mapping[str, frames.Crossed]) -> Figures:
    return {
        "distinct modules of one call": {name: one.modules for name, one in calls.items()},
        "frames of one call": {name: one.frames for name, one in calls.items()},
        "frames in the backend": {
            name: one.backend for name, one in calls.items() if name.endswith("server")
        },
        "frames in other code": {name: one.others for name, one in calls.items()},
    }


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write figures and lists there, too")
    arguments = parser.parse_args()
    figures, lists = source_shape(ROOT)
    with frames.recorded_server() as server:
        figures |= call_figures(frames.measure(server))
    baseline: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    sys.stdout.write(f"{_NOTES.format(python=platform.python_version(), **baseline)}\n\n")
    sys.stdout.write(f"{table(figures, baseline['figures'], baseline['name'])}\n")
    for title, lines in lists.items():
        if lines:
            sys.stdout.write("\n".join(["", title, *(f"  {line}" for line in lines), ""]))
    if arguments.json:
        found = {"python": platform.python_version(), "figures": figures, "lists": lists}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


_NOTES = """\
Tokens   those of kind NAME, NUMBER, STRING and OP, an f-string as one; no comments, docstrings,
         line ends or indentation. The generated gradwire.v1 is in no figure but "other code".
Frames   Python frames entered or resumed, with backend numpy_cpu; the median of 7 repeats.
Today    Python {python}; {name}: commit {commit}, Python {measured_with}."""


if __name__ == "__main__":
    main()
