"""The size of the project as one table beside baseline.json: tokens, modules, complex functions.

PYTHONPATH=tests python -m shape
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import token
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("client/gradwire", "server/gradwire_server", "server/gradwire_ray")
_GENERATED = "client/gradwire/v1"
_MOST_COMPLEXITY = 12
_COUNTED = {token.NAME, token.NUMBER, token.OP, token.STRING}


def modules(folder: str) -> list[Path]:
    """Return the Python files of a folder and of the folders in it, without generated ones."""
    found = (ROOT / folder).rglob("*.py")
    return sorted(one for one in found if not one.is_relative_to(ROOT / _GENERATED))


def tokens(source: str) -> int:
    """Count names, numbers, strings and operators; an f-string is one, a docstring none."""
    tree = ast.parse(source)
    count = depth = 0
    for one in tokenize.generate_tokens(io.StringIO(source).readline):
        # From Python 3.12 on an f-string is several tokens.
        name = token.tok_name[one.type]
        count += depth == 0 and (one.type in _COUNTED or name == "FSTRING_START")
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
    return count - sum(ast.get_docstring(node) is not None for node in nodes)


def sizes() -> dict[str, dict[str, int]]:
    """Return tokens and modules of each folder, its folders included, and of the roots alone."""
    figures = {"tokens": Counter[str](), "modules": Counter[str]()}
    for top in (*PRODUCT, "tests", "benchmarks"):
        for one in modules(top):
            parts = one.relative_to(ROOT / top).parts
            for row in (f"{top}/{parts[0]}" if parts[1:] else f"{top}, its root", f"{top}, all"):
                figures["tokens"][row] += tokens(one.read_text(encoding="utf-8"))
                figures["modules"][row] += 1
    return dict[str, dict[str, int]](figures)


def complex_functions() -> list[str]:
    """Let ruff judge complexity, whatever pyproject.toml and remarks leave out."""
    words = "check --isolated --ignore-noqa --quiet --select=C901 --output-format=concise"
    more = f"--config=lint.mccabe.max-complexity={_MOST_COMPLEXITY} --extend-exclude={_GENERATED}"
    command = [sys.executable, "-m", "ruff", *words.split(), *more.split(), *PRODUCT]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if found.returncode > 1 or found.stderr:
        raise RuntimeError(f"ruff did not run; `make install` installs it: {found.stderr}")
    return found.stdout.splitlines()


def main() -> None:
    too_complex = complex_functions()
    baseline = json.loads(Path(__file__).with_name("baseline.json").read_text(encoding="utf-8"))
    lines = [
        "Tokens are those of kind NAME, NUMBER, STRING and OP, an f-string as one; no comments,",
        "docstrings, line ends or indentation. The generated gradwire.v1 is in no figure.",
        f"{baseline['name']} is commit {baseline['commit']}.\n",
        f"{'':48} {'today':>8} {baseline['name']:>10}",
    ]
    for section, today in sizes().items():
        before = baseline["figures"][section]
        rows = [(row, today.get(row, "-"), before.get(row, "-")) for row in {**today, **before}]
        lines += [section, *(f"  {row:46} {now:>8} {then:>10}" for row, now, then in rows)]
    lines.append(f"functions of a complexity above {_MOST_COMPLEXITY}: {len(too_complex)}")
    sys.stdout.writelines(f"{line}\n" for line in [*lines, *too_complex])


if __name__ == "__main__":
    main()
