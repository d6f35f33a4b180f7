"""Bounds on the structure of the product's source, and names in pages that must exist."""

from __future__ import annotations

import re
from pathlib import Path

from shape import layers, source

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client" / "gradwire"
SERVER = ROOT / "server" / "gradwire_server"
MOST_AT_THE_ROOT = 8
MOST_AT_THE_CLIENTS_ROOT = 10
MOST_LAYERS = 9
TESTS = ROOT / "tests"
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")
NAMED = {(TESTS / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", PAGE)}


def test_a_class_name_is_that_of_one_class() -> None:
    folders = (CLIENT, SERVER, ROOT / "server" / "gradwire_ray")
    files = [file for one in folders for file in source.modules(one, without=[CLIENT / "v1"])]
    assert len(files) > len(folders)
    assert source.repeated_classes(file.read_text(encoding="utf-8") for file in files) == {}


def test_the_root_of_the_server_has_few_modules() -> None:
    assert 0 < len(list(SERVER.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_the_root_of_the_client_has_few_modules_all_public() -> None:
    names = {file.stem for file in CLIENT.glob("*.py")}
    assert len(names) <= MOST_AT_THE_CLIENTS_ROOT
    assert {name for name in names if name.startswith("_")} == {"__init__", "__main__"}


def test_the_architecture_page_names_modules_and_layers_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./[^)#]+)\)", page)
    assert len(links) > MOST_LAYERS
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert len(layers.layers()) <= MOST_LAYERS
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
