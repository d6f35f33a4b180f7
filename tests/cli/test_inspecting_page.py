"""The examples of docs/inspecting.md, run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.command_line import run_here

PAGE = Path(__file__).parents[2] / "docs/inspecting.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.split()[2])
def test_a_command_prints_what_stands_below_it(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernels,) = blocks("python")
    (tmp_path / "kernels.py").write_text(kernels)
    monkeypatch.chdir(tmp_path)
    command, _, promised = block.partition("\n")
    prompt, program, *arguments = shlex.split(command)
    assert (prompt, program) == ("$", "gradwire")
    done = run_here(*arguments)
    assert done.stderr == ""
    assert done.stdout == promised
    assert done.code == (0 if arguments[0] == "explain" else 9)
