"""The tool that tries recorded mutants."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from mutants import running, table
from mutants.__main__ import ROOT, TABLE, outcomes
from mutants.table import Mutant

_SOURCE = """\
class Counter:
    def up_to(self, limit: int) -> int:
        total = 0
        if limit < 0:
            return total
        for number in range(limit):
            total += number
        return total
"""
_MUTANT = Mutant(
    1,
    "counting",
    "The last number is counted twice.",
    "server/counter.py",
    "Counter.up_to",
    "    total += number\nreturn total\n",
    "    total += number\nreturn total + number\n",
    outcome="caught",
    tests=("test_counter.py::test_it_counts",),
)


def test_a_place_is_found_again_where_its_function_has_moved() -> None:
    moved = "import math\n\n\n" + _SOURCE
    assert "return total + number" in _MUTANT.applied(moved)


def test_a_place_that_is_gone_is_an_error_that_tells_the_behavior() -> None:
    with pytest.raises(LookupError, match=r"express again: The last number is counted twice\."):
        _MUTANT.applied(_SOURCE.replace("total += number", "total = total + number"))


def test_every_recorded_mutant_is_described_and_judged() -> None:
    mutants = table.read(TABLE)
    assert [mutant.number for mutant in mutants] == list(range(1, len(mutants) + 1))
    assert len({mutant.behavior for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert mutant.outcome in {"caught", "equivalent"}
        assert (mutant.reason != "") == (mutant.outcome == "equivalent")
        assert (mutant.tests != ()) == (mutant.outcome == "caught")


def test_the_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mutants.toml"
    path.write_text(table.text([_MUTANT]), encoding="utf-8")
    assert table.read(path) == [_MUTANT]


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> Path:
    """Return a repository with a function, and a test of what it counts up to."""
    root = tmp_path / "repository"
    progress = root / "tests" / "mutants" / "progress.py"
    progress.parent.mkdir(parents=True)
    progress.write_text((ROOT / "tests" / "mutants" / "progress.py").read_text(encoding="utf-8"))
    (root / "server").mkdir()
    (root / "server" / "counter.py").write_text(_SOURCE)
    for name, limit in (("counter", 3), ("nothing", 0)):
        test = f"def test_it_counts():\n    assert counter.Counter().up_to({limit}) == {limit}\n"
        (root / f"test_{name}.py").write_text(f"import counter\n\n{test}")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)  # noqa: S607 - git, by its name
    return root


def _judged(mutant: Mutant, repository: Path) -> str | None:
    copy = running.Copy(repository, repository.parent / "copies" / "0")
    copy.refresh()
    found = copy.judge(mutant)
    assert (copy.folder / "server" / "counter.py").read_text() == _SOURCE
    return found


def test_a_mutant_is_caught_by_the_test_that_fails_with_it_alone(repository: Path) -> None:
    assert _judged(_MUTANT, repository) == "test_counter.py::test_it_counts"


@pytest.mark.parametrize(
    "tests",
    [
        ("test_gone.py::test_it", *_MUTANT.tests),
        ("test_counter.py::test_it_counts[case]",),
        ("test_counter.py::test_of_another_name",),
        ("test_gone.py::test_it_counts",),
    ],
    ids=["module", "case", "function", "moved"],
)
def test_where_a_test_is_gone_what_took_its_place_is_run(
    repository: Path, tests: tuple[str, ...]
) -> None:
    caught = _judged(dataclasses.replace(_MUTANT, tests=tests), repository)
    assert caught == "test_counter.py::test_it_counts"


def test_a_mutant_is_caught_by_a_process_that_dies(repository: Path) -> None:
    dying = dataclasses.replace(_MUTANT, after="    total += number\n__import__('os')._exit(0)\n")
    assert _judged(dying, repository) == "test_counter.py::test_it_counts"


def test_a_test_that_fails_without_the_mutant_catches_nothing(repository: Path) -> None:
    (repository / "test_counter.py").write_text("def test_it_counts():\n    assert False\n")
    assert _judged(_MUTANT, repository) is None


def test_a_mutant_that_escapes_is_told_and_is_not_caught(repository: Path) -> None:
    escaping = Mutant(
        *(1, "counting", "No sum is limited.", "server/counter.py", "Counter.up_to"),
        *("if limit < 0:\n", "if limit <= 0:\n", "caught", ""),
        ("test_nothing.py::test_it_counts",),
    )
    found = {1: _judged(escaping, repository)}
    assert found == {1: None}
    assert outcomes([escaping], found).splitlines()[-1] == "1 escaped"
