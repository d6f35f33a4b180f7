"""The tables of tests/README.md name files that are there, and every stored vector."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TEXT = (TESTS / "README.md").read_text(encoding="utf-8")
NAMED = {(TESTS / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", TEXT)}


def test_every_file_that_is_named_exists() -> None:
    assert NAMED
    assert [str(one) for one in NAMED if not one.is_file()] == []


def test_every_stored_vector_is_named() -> None:
    stored = {
        one
        for folder in ("data", "fuzz/corpus")
        for one in (TESTS / folder).rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }
    assert stored
    assert sorted(stored - NAMED) == []
