"""Counts of the source, and names in the source and in pages that must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shape import layers, source, words
from shape.__main__ import table

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client" / "gradwire"
TESTS = ROOT / "tests"
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")
NAMED = {(TESTS / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", PAGE)}

TOKENS = {
    "": 0,
    "x = 1": 3,
    "x = 1  # a remark\n\n# another\n": 3,
    '"""A docstring."""\nx = "a string"\n': 3,
    'x = 1\n"""No docstring."""\n': 4,
    '("A docstring"\n " of two strings")\n': 2,
    'def f():\n    """A docstring."""\n    return (\n        1\n    )\n': 9,
    'class C:\n    """A docstring."""\n': 3,
    'async def f(): "A docstring"; return None\n': 9,
    "x = f'{y + 1:{z}} and more'\n": 3,
}


@pytest.mark.parametrize(("text", "count"), TOKENS.items())
def test_tokens_are_names_numbers_strings_and_operators(text: str, count: int) -> None:
    assert source.tokens(text) == count


def test_the_table_has_rows_of_either_side() -> None:
    lines = table({"s": {"a": 1}}, {"s": {"b": 2}, "t": {"c": 3}}, "then").splitlines()
    rows = [["s"], ["a", "1", "-"], ["b", "-", "2"], ["t"], ["c", "-", "3"]]
    assert [line.split() for line in lines] == [["today", "then"], *rows]


def test_words_of_docstrings_and_comments_are_found_by_line() -> None:
    text = '"""Prints `who` calls."""\nx = 1  # for whoever reads\n\n# What it is is told.\n'
    assert [line for line, _ in words.findings(text)] == [2, 4]


def test_a_class_name_is_that_of_one_class() -> None:
    assert source.repeated_classes(["class A: ...\nclass B: ...", "class A: ..."]) == {"A"}
    folders = (CLIENT, ROOT / "server" / "gradwire_server", ROOT / "server" / "gradwire_ray")
    files = [file for one in folders for file in source.modules(one, without=[CLIENT / "v1"])]
    assert len(files) > len(folders)
    assert not source.repeated_classes(file.read_text(encoding="utf-8") for file in files)


def test_the_root_of_the_client_has_public_modules_alone() -> None:
    names = {file.stem for file in CLIENT.glob("*.py")}
    assert {name for name in names if name.startswith("_")} == {"__init__", "__main__"}


def test_the_architecture_page_names_modules_and_layers_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./[^)#]+)\)", page)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert layers.picture() in page, "print it anew: PYTHONPATH=tests python -m shape.layers"


def test_every_file_that_the_page_of_tests_names_exists() -> None:
    assert NAMED
    assert [str(one) for one in NAMED if not one.is_file()] == []


def test_every_stored_vector_is_named_in_the_page_of_tests() -> None:
    stored = {
        one
        for folder in ("data", "fuzz/corpus")
        for one in (TESTS / folder).rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }
    assert stored
    assert sorted(stored - NAMED) == []
