"""Bounds on the structure of the product's source."""

from __future__ import annotations

import re
from pathlib import Path

from shape import layers, source

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client" / "gradwire"
SERVER = ROOT / "server" / "gradwire_server"
PRODUCT = (CLIENT, SERVER, ROOT / "server" / "gradwire_ray")
MOST_AT_THE_ROOT = 8
MOST_AT_THE_CLIENTS_ROOT = 10
MOST_LAYERS = 9
MOST_LINES = 700


def texts() -> dict[str, str]:
    """Return the source of every module that is not generated, by its path."""
    files = (file for folder in PRODUCT for file in sorted(folder.rglob("*.py")))
    return {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
        for file in files
        if "v1" not in file.parts
    }


def test_a_class_name_is_that_of_one_class() -> None:
    assert source.repeated_classes(texts().values()) == {}


def test_the_root_of_the_server_has_few_modules() -> None:
    assert len(list(SERVER.glob("*.py"))) <= MOST_AT_THE_ROOT


def test_the_root_of_the_client_has_few_modules_all_public() -> None:
    names = {file.stem for file in CLIENT.glob("*.py")}
    assert len(names) <= MOST_AT_THE_CLIENTS_ROOT
    assert {name for name in names if name.startswith("_")} == {"__init__", "__main__"}


def test_the_server_has_few_layers() -> None:
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert source.layers(contract, "the server is layered") <= MOST_LAYERS


def test_no_module_is_too_long_to_read() -> None:
    assert source.longer_than(MOST_LINES, texts()) == {}


def test_the_architecture_page_names_modules_and_layers_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./[^)#]+)\)", page)
    assert len(links) > MOST_LAYERS
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert len(layers.layers()) <= MOST_LAYERS
    assert layers.picture() in page, "print it anew: PYTHONPATH=tests python -m shape.layers"
