"""Names in pages that must exist."""

import ast
import re
import tomllib

from shape.__main__ import ROOT

TESTS, SERVER = ROOT / "tests", ROOT / "server" / "gradwire_server"


def test_the_architecture_page_names_modules_and_layers_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\.\./[^)#]+)\)", page)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["name"] == "the server is layered")
    lines = []
    for layer in layers:
        lines.append(f"    {'-' * 20}\n")
        for name in re.split(r" [:|] ", layer):
            folder = SERVER / name
            file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            lines.append(f"    {name:20} {told.splitlines()[0]}\n")
    picture = "".join(lines[1:])
    assert picture in page, f"docs/architecture.md lacks this picture:\n{picture}"


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
