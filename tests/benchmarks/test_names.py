"""The names of `python -m benchmarks`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]
COMMANDS = re.compile(r"python -m benchmarks(?: ([a-z-]+))?")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_a_name_all_are_listed() -> None:
    done = _run()
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in NAMES)


def test_another_name_is_refused() -> None:
    assert _run("nothing").returncode == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_module(name: str) -> None:
    assert find_spec(f"benchmarks.{NAMES[name][0]}") is not None


@pytest.mark.parametrize(
    "page", ["Makefile", *(str(one.relative_to(ROOT)) for one in (ROOT / "docs").rglob("*.md"))]
)
def test_commands_of_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {name for name in COMMANDS.findall(text) if name} <= NAMES.keys()
