"""The tool that tries recorded mutants."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
from pathlib import Path

import pytest

from mutants import drawing, running, selection, table
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


def test_drawing_is_repeatable_and_gives_every_area_its_share(tmp_path: Path) -> None:
    names = [f"counter_{number}.py" for number in range(3)]
    for name in names:
        (tmp_path / name).write_text(_SOURCE)
    areas = {"one": names, "another": names[1:]}
    drawn = drawing.draw(tmp_path, areas)
    assert drawn == drawing.draw(tmp_path, areas)
    assert [mutant.area for mutant in drawn] == [
        *["one"] * drawing.PER_AREA,
        *["another"] * drawing.PER_AREA,
    ]
    for mutant in drawn:
        assert mutant.applied(_SOURCE) != _SOURCE


def test_a_change_is_of_behavior_and_leaves_a_program() -> None:
    found = {change.kind for _, change in drawing.changes(_SOURCE)}
    assert found == {
        "comparison",
        "constant",
        "dropped check",
        "dropped statement",
        "off by one",
        "swapped branches",
    }
    for function, change in drawing.changes(_SOURCE):
        before, after = drawing.as_lines(_SOURCE, function, change)
        mutant = Mutant(1, "", "", "", function, before, after)
        assert ast.dump(ast.parse(mutant.applied(_SOURCE))) != ast.dump(ast.parse(_SOURCE))


def test_a_place_is_found_again_where_its_function_has_moved() -> None:
    moved = "import math\n\n\n" + _SOURCE
    assert moved.splitlines()[_MUTANT.lines(moved).start - 1] == "        return total"
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


def test_each_function_of_tests_has_its_turn_before_the_cases_of_one() -> None:
    seconds = {"a.py::one[1]": 1.0, "a.py::one[2]": 1.0, "b.py::two": 5.0, "b.py::long": 30.0}
    lines = {"a.py::one[1]": 20, "a.py::one[2]": 20, "b.py::two": 500, "b.py::long": 10}
    selected = selection.chosen(seconds, seconds, lines)
    assert selected == ("a.py::one[1]", "b.py::two", "a.py::one[2]")


def test_functions_that_take_long_leave_time_for_quick_cases() -> None:
    seconds = {f"slow.py::long_{number}": 6.0 for number in range(9)}
    seconds |= {f"quick.py::case[{number}]": 0.01 for number in range(40)}
    selected = selection.chosen(seconds, seconds, dict.fromkeys(seconds, 100))
    assert {test for test in seconds if test.startswith("quick")} <= set(selected)
    assert sum(seconds[test] for test in selected) <= selection.BUDGET_S


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


def test_tests_that_are_gone_are_left_out(repository: Path) -> None:
    gone = ("test_gone.py::test_it", "test_counter.py::test_gone", "test_nothing.py::test_gone[1]")
    mutant = dataclasses.replace(_MUTANT, tests=(*gone, *_MUTANT.tests))
    assert _judged(mutant, repository) == "test_counter.py::test_it_counts"


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
