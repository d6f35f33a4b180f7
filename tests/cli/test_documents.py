"""Examples of README.md and of the pages in docs run as they stand, and tables are complete."""

import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest
import reference_tables

from gradwire import Client, ops, v1
from gradwire.cli.app import commands
from gradwire.ops._base import Choice, rule_of
from gradwire_server.config.settings import Settings, flag
from support.command_line import run_here
from support.oracles.dialect_tables import TABLES

ROOT = Path(__file__).parents[2]
PAGES = sorted({table.page for table in TABLES.values()})
IN_DOCS = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))
LINKED = ("CONTRIBUTING.md", "README.md", "SECURITY.md", *IN_DOCS)
# Pages whose Python runs elsewhere: in tests of their own, or not without a framework, a cluster or
# a unix socket.
_OTHERS = "bridges conformance inspecting kubernetes local open-inference scaling-out"
ELSEWHERE = {f"docs/{page}.md" for page in _OTHERS.split()}
INSPECTING = "docs/inspecting.md"
DEFAULT_TARGET = "127.0.0.1:50051"


def blocks(document, language):
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def words(text):
    """Normalize the spaces of printed arrays."""
    return " ".join(text.split()).replace("[ ", "[").replace(" ]", "]")


DOCUMENTS = [page for page in LINKED if page not in ELSEWHERE and blocks(page, "python")]


@pytest.mark.parametrize("document", LINKED)
def test_every_link_into_the_repository_leads_somewhere(document):
    text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / document).read_text())
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        page = (ROOT / document).parent / path if path else ROOT / document
        assert page.exists(), link
        if anchor:
            # Ids, and headings as GitHub names them.
            found = page.read_text()
            headings = re.findall(r"^#+ (.*)$", found, re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
            assert anchor in [*slugs, *re.findall(r'<a id="([^"]+)"></a>', found)], link


OPERATORS = {
    example.operator.name: table.page for table in TABLES.values() for example in table.examples
}


@pytest.mark.parametrize("kind", ops.OPERATORS.values(), ids=lambda kind: kind.name)
def test_an_operators_page_names_every_attribute_and_value(kind):
    document = OPERATORS[kind.name]
    name = Path(document).name
    text = (ROOT / document).read_text()
    for page, link in (("docs/operators.md", f"dialects/{name}"), ("README.md", document)):
        listed = (ROOT / page).read_text()
        assert f"| `{kind.name}` |" in listed
        assert f"]({link})" in listed
    assert f"]({Path(name).with_suffix('.png')})" in text
    rules = [rule_of(field) for field in fields(kind)]
    values = [value for rule in rules if isinstance(rule, Choice) for value in rule.allowed]
    names = [field.name for field in fields(kind)]
    for word in (kind.name, *names, *values):
        assert f"`{word}`" in text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_example_prints_what_stands_beside_it(document, target):
    namespace = {}
    for block in blocks(document, "python"):
        promised = re.findall(r"print\(.*\)  # (.*)$", block, re.MULTILINE)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block.replace(DEFAULT_TARGET, target), document, "exec"), namespace)  # noqa: S102
        assert words(printed.getvalue()) == words(" ".join(promised))
    for value in namespace.values():
        if isinstance(value, Client):
            value.close()


def test_the_readme_is_short_and_its_extras_are_all_that_exist():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert set(PAGES) < set(DOCUMENTS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"`(?:pip install )?\"\.\[([a-z0-9,]+)\]\"`|; `(\w+)` for drivers", text)
    extras = {extra for pair in named for one in pair for extra in one.split(",")}
    assert extras - {""} == set(project["optional-dependencies"])


def test_the_quick_start_runs_line_by_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = f"127.0.0.1:{probe.getsockname()[1]}"
    (block,) = (block for block in blocks("README.md", "sh") if "gradwire-server" in block)
    set_up, separator, commands = block.partition("gradwire-server &\n")
    assert separator
    assert "pip install" in set_up
    script = f"set -e\n{separator}{commands}wait\n".replace(DEFAULT_TARGET, free)
    script = script.replace("gradwire health", f"gradwire health --target {free}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "GRADWIRE_ADDRESS": free}
    command = ["/bin/bash", "-c", script]
    done = subprocess.run(  # noqa: S603 - our own document
        command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert "SERVING\n" in done.stdout, done.stderr
    assert "[[9. 6.]\n [0. 0.]]\n" in done.stdout
    assert "--attr mode=" in done.stdout


@pytest.mark.parametrize("block", blocks(INSPECTING, "console"), ids=lambda block: block.split()[2])
def test_a_command_prints_what_stands_below_it(block, tmp_path, target, monkeypatch):
    # In place of a server of its own.
    monkeypatch.setenv("GRADWIRE_TARGET", target)
    (kernels,) = blocks(INSPECTING, "python")
    (tmp_path / "kernels.py").write_text(kernels)
    monkeypatch.chdir(tmp_path)
    command, _, promised = block.partition("\n")
    prompt, program, *arguments = shlex.split(command)
    assert (prompt, program) == ("$", "gradwire")
    done = run_here(*arguments)
    assert done.stderr == ""
    assert done.stdout == promised
    assert done.code == (0 if arguments[0] == "explain" else 9)


def test_the_reference_pages_have_every_setting_command_and_reason():
    table = reference_tables.settings()
    assert [one.name for one in fields(Settings) if f"| `{flag(one.name)}` |" not in table] == []
    text = reference_tables.cli()
    names = [*(f"gradwire {name}" for name in commands.commands), "gradwire-server token create"]
    assert [name for name in names if f"## {name}\n" not in text] == []
    table = reference_tables.errors()
    reasons = [name.removeprefix("ERROR_REASON_") for name in v1.ErrorReason.keys()]  # noqa: SIM118 - an enum of protobuf
    assert [one for one in reasons[1:] if f"| `{one}` |" not in table] == []
