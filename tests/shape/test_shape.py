"""Names in the source and in pages that must exist, and class names that must be unique."""

import ast
import re
from collections import Counter

from shape import layers
from shape.__main__ import PRODUCT, ROOT, modules

TESTS = ROOT / "tests"


def test_a_class_name_is_that_of_one_class():
    found = Counter(
        node.name
        for folder in PRODUCT
        for file in modules(folder)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert "Client" in found
    assert [name for name, count in found.items() if count > 1] == []


def test_the_root_of_the_client_has_public_modules_alone():
    names = {file.stem for file in (ROOT / "client/gradwire").glob("*.py")}
    assert {name for name in names if name.startswith("_")} == {"__init__", "__main__"}


def test_the_architecture_page_names_modules_and_layers_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./[^)#]+)\)", page)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert layers.picture() in page, "print it anew: PYTHONPATH=tests python -m shape.layers"


def test_the_page_of_tests_names_files_that_exist_and_every_stored_vector():
    page = (TESTS / "README.md").read_text(encoding="utf-8")
    named = {(TESTS / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", page)}
    assert [str(one) for one in named if not one.is_file()] == []
    stored = set()
    for folder in ("data", "fuzz/corpus"):
        files = [one for one in (TESTS / folder).rglob("*") if one.is_file()]
        assert files
        stored.update(one for one in files if "__pycache__" not in one.parts)
    assert sorted(stored - named) == []
